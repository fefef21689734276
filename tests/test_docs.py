"""Links in the documentation lead somewhere: to a file of this repository, and to a heading in it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)">')
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_links_lead_to_files_and_headings() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(CODE.sub("", page.read_text()))]
    inside = [(page, target) for page, target in links if "://" not in target and not target.startswith("mailto:")]
    assert inside
    broken = [f"{page.relative_to(ROOT)}: {target}" for page, target in inside if not _exists(page, target)]
    assert broken == []


def _exists(page: Path, target: str) -> bool:
    path, _, heading = target.partition("#")
    found = page.parent / path if path else page
    return found.exists() and (not heading or heading in _headings(found))


@cache
def _headings(page: Path) -> frozenset[str]:
    """Return the names by which a page's headings and anchors are linked to."""
    text = CODE.sub("", page.read_text())
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text))
    return frozenset((*headings, *ANCHOR.findall(text)))

"""Who may do what, as the tables of the documentation say."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENTS = Path(__file__).parents[2] / "docs"


def documented(page: str = "api.md", heading: str = "Who may do what") -> dict[str, dict[str, str]]:
    """Return the tables of a page of docs/: for each action, who may. Raises ValueError for what cannot be read."""
    text = (DOCUMENTS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith("|--"):
            continue
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if "`" not in first:
            columns = cells
            continue
        for action, suffix in re.findall(r"`([A-Z]+ /[^`]*)`( for the tenant)?", first):
            if action + suffix in found:
                raise ValueError(f"{action}{suffix} is in two rows")
            found[action + suffix] = dict(zip(columns, cells, strict=True))
    return found

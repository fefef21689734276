"""The PDF of an invoice: typst sets it, as PDF/A-3 with the EN 16931 document attached (Factur-X).

Noto Sans has Latin, Greek and Cyrillic, and comes with packages, as do Arabic, Devanagari and Thai; Hebrew is in a font
of typst's own. Fonts of the machine are used for what these lack, such as Chinese. A character that no font has is
refused, because a document with a hole in it is worse than none.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import typst

from billing.errors import InvoiceRefused
from billing.invoices.content import Content
from billing.invoices.documents import factur_x, layout

TEMPLATE = Path(__file__).with_name("invoice.typ")
_PACKAGES = ("fontpkg_noto_sans", "fontpkg_noto_sans_arabic", "fontpkg_noto_sans_devanagari", "fontpkg_noto_sans_thai")
_FAMILIES = ("Noto Sans", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai", "Libertinus Serif")
_FALLBACKS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "DejaVu Sans")


def render(content: Content, attachment: bytes) -> bytes:
    """Return the PDF, with this EN 16931 document attached; empty: none. Raises InvoiceRefused."""
    page = layout.page(content)
    data = asdict(page) | {
        "usage-note": page.usage_note,
        "issued": content.issued_on.isoformat(),
        "currency": content.currency,
        "attachment": attachment.decode(),
        "watermark": "DRAFT" if content.kind == "draft" else "",
        "fonts": [*_FAMILIES, *_installed()],
    }
    try:
        compiler = typst.Compiler(TEMPLATE.read_bytes(), root=TEMPLATE.parent, font_paths=_fonts())
        # sys_inputs are data: nothing in them is run as typst's markup
        pdf = compiler.compile(sys_inputs={"page": json.dumps(data)}, format="pdf", pdf_standards="a-3b")
    except typst.TypstError as error:
        raise _refused(content, str(error)) from error
    assert isinstance(pdf, bytes)
    return factur_x.describe(pdf) if attachment else pdf


def _refused(content: Content, problem: str) -> InvoiceRefused:
    if found := re.search("the text `(.*?)` could not be displayed", problem):
        return InvoiceRefused(
            content.number,
            f"no font has the text {found[1]}",
            "Install a font that has it where this runs (Debian: fonts-noto-cjk), or change the text.",
        )
    return InvoiceRefused(content.number, f"it cannot be set: {problem}")


def _fonts() -> typst.Fonts:
    return typst.Fonts(font_paths=[str(each) for each in _folders()])


def _folders() -> list[Path]:
    """Return where the packages' fonts are, without running their code."""
    folders = []
    for name in _PACKAGES:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None, f"{name} is a dependency"
        folders.append(Path(spec.origin).parent / "files")
    return folders


def _installed() -> list[str]:
    """Return the fallback families that this machine has; typst warns of others."""
    families = typst.Fonts(include_system_fonts=True, include_embedded_fonts=False).families()
    return [each for each in _FALLBACKS if each in families]

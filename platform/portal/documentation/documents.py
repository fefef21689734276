"""The documentation for tenants: Markdown files of ``docs/tenants``, those about errors also as one page per code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus

from django.conf import settings

#: File names without their ending, in the order of the menu.
ORDER = (
    "quickstart",
    "streaming",
    "caching",
    "advisor",
    "content-log",
    "limits",
    "invoices",
    "errors",
    "sdks",
    "management-errors",
)

_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE = re.compile(r"^## ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One page: its address below ``/docs/``, its title and its text, in Markdown."""

    slug: str
    title: str
    text: str


@cache
def documents() -> dict[str, Document]:
    """Return all pages by their slug, in the order of the menu. They are read once in a process."""
    return {slug: _read(slug) for slug in ORDER}


@cache
def errors() -> dict[str, Document]:
    """Return the section about each error code of the inference API, by code, in the order of the page."""
    return _sections("errors")


@cache
def management_errors() -> dict[str, Document]:
    """Return the section about each error code that only the management API has, by code, in the order of the page."""
    return _sections("management-errors")


def explained(code: str, status: int) -> str:
    """Return the code whose section explains an error of the management API: mostly its own."""
    if code in management_errors() or code in errors():
        return code
    if code.endswith("_not_found"):
        return "not_found"
    return "invalid_value" if status == HTTPStatus.BAD_REQUEST else ""


def _sections(slug: str) -> dict[str, Document]:
    parts = _CODE.split(documents()[slug].text)
    return {
        code: Document(slug=f"errors/{code}", title=code, text=f"# `{code}`\n{text}")
        for code, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _read(slug: str) -> Document:
    text = (settings.TENANT_DOCUMENTATION / f"{slug}.md").read_text(encoding="utf-8")
    title = _TITLE.search(text)
    assert title is not None, f"{slug}.md has no title"
    return Document(slug=slug, title=title[1], text=text)

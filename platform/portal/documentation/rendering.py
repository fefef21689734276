"""Turn a document into HTML. HTML in it stays text; links between files become links between pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify
from markdown_it import MarkdownIt
from markdown_it.token import Token

from portal.documentation.documents import Document, errors

#: What the files show in place of the reader's own addresses and model.
API_BASE = "http://127.0.0.1:8080"
PORTAL = "http://127.0.0.1:8081"
MODEL = re.compile(r"\bMODEL\b")

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_FILE = re.compile(r"([a-z]+)\.md(#.*)?")


def html(document: Document, *, root: str, api_url: str, portal_url: str, model: str) -> SafeString:
    """Return the document's HTML with the reader's addresses and a model's name in its examples.

    ``root`` is the address of the documentation, with a slash at its end; ``api_url`` and ``portal_url`` are origins.
    """
    text = document.text.replace(API_BASE, api_url).replace(PORTAL, portal_url)
    tokens = _MARKDOWN.parse(MODEL.sub(lambda _: model, text))
    _address(tokens, root)
    rendered: str = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return mark_safe(rendered)  # the renderer escapes all text


def _address(tokens: Sequence[Token], root: str) -> None:
    """Give each heading an id, each link its page's address, and what may scroll sideways the keyboard's focus."""
    for token, after in zip(tokens, tokens[1:] or tokens, strict=False):
        if token.type in {"fence", "code_block", "table_open"}:
            token.attrSet("tabindex", "0")
        if token.type == "heading_open" and token.tag != "h1":
            heading = after.content
            token.attrSet("id", heading if heading in errors() else slugify(heading))
        # a document's screenshots are of the repository alone: nothing here serves them
        token.children = [child for child in token.children if child.type != "image"] if token.children else None
        for child in token.children or ():
            target = child.attrGet("href")
            if isinstance(target, str) and "://" not in target:
                child.attrSet("href", _page(target, root))


def _page(target: str, root: str) -> str:
    found = _FILE.fullmatch(target)
    return f"{root}{target}/" if found is None else f"{root}{found[1]}/{found[2] or ''}"

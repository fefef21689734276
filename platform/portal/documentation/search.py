"""Search the documentation for tenants: the sections whose heading or text has all words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from django.urls import reverse
from django.utils.text import slugify

from portal.documentation.documents import Document, documents, errors, management_errors

#: Sections that a search returns.
MOST = 5
#: Words of a text that are looked for.
MOST_WORDS = 8
#: Shorter texts are in too many sections.
SHORTEST = 3

#: "misses" is of "miss" and "caches" of "cache"; "status" and "address" are of one thing.
_PLURAL = re.compile(r"([a-z]{2,}(?:ss|x))es|([a-z]{2,}[^\Wsiu\d_])s")
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section: its document's title, its heading, its address, and its text in lower case."""

    document: str
    heading: str
    link: str
    text: str

    def has(self, words: list[re.Pattern[str]], *, in_heading: bool) -> bool:
        """Return whether all words begin somewhere in the text, or in the heading."""
        text = self.heading.lower() if in_heading else self.text
        return all(word.search(text) for word in words)


def find(text: str) -> list[Section]:
    """Return the sections that have all words of a text, those with the words in their heading first."""
    if len(text.strip()) < SHORTEST:
        return []
    # an error code is one word; its parts are words too
    words = [re.compile(rf"(?<![a-z0-9]){re.escape(_stem(word))}") for word in text.lower().split()[:MOST_WORDS]]
    found = [each for each in _sections() if each.has(words, in_heading=False)]
    return sorted(found, key=lambda each: not each.has(words, in_heading=True))[:MOST]


def _stem(word: str) -> str:
    """Return a word without the ending of its plural, as words are looked for by their beginning."""
    plural = _PLURAL.fullmatch(word)
    return plural[1] or plural[2] if plural else word


@cache
def _sections() -> tuple[Section, ...]:
    """Return all sections, in the order of the menu. They are cut once in a process."""
    return tuple(section for document in documents().values() for section in _cut(document))


def _cut(document: Document) -> Iterator[Section]:
    address = reverse("docs:document", args=[document.slug])
    first, *rest = _HEADING.split(document.text)
    yield Section(document=document.title, heading=document.title, link=address, text=first.lower())
    for heading, text in zip(rest[::2], rest[1::2], strict=True):
        is_code = heading in errors() or heading in management_errors()
        link = reverse("docs:error", args=[heading]) if is_code else f"{address}#{slugify(heading)}"
        yield Section(document=document.title, heading=heading, link=link, text=f"{heading}\n{text}".lower())

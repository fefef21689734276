"""Find the texts of the pages, and write them to the catalogues of the languages: ``make translations``.

A catalogue is ``portal/locale/LANGUAGE/LC_MESSAGES/django.po``, which people edit, with ``django.mo`` beside it, which
Django reads. Both are in the repository, so an installation compiles nothing.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation import template

PORTAL = Path(__file__).parent
TEMPLATES = PORTAL.parents[1] / "templates"
LOCALE = PORTAL / "locale"
#: What other rooms say of each type of event, kind of alert and kind of record, on pages and in e-mails.
WORDS = [PORTAL.parent / name for name in ("notifications/event_types.py", "alerting/kinds.py", "retention/policy.py")]
#: What marks a text, and which of its arguments are the text, its plural and its context (``c``).
KEYWORDS: dict[str, tuple[int | tuple[int, str], ...] | None] = {
    "_": None,
    "gettext": None,
    "gettext_noop": None,
    "gettext_lazy": None,
    "ngettext": (1, 2),
    "pgettext": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}


def texts() -> Catalog:
    """Return a catalogue of every marked text of the templates and of the portal's Python files."""
    found = Catalog(project="Hearth", fuzzy=False)
    for path in sorted([*TEMPLATES.rglob("*.html"), *TEMPLATES.rglob("*.txt"), *PORTAL.rglob("*.py"), *WORDS]):
        source = path.read_text()
        if path.suffix != ".py":
            source = template.templatize(source, origin=path.name)
        place = path.relative_to(TEMPLATES.parent).as_posix()
        for line, text, comments, context in extract("python", io.BytesIO(source.encode()), keywords=KEYWORDS):
            found.add(text, locations=[(place, line)], auto_comments=comments, context=context)
    return found


def write(language: str) -> int:
    """Bring the catalogue of a language up to date, or begin it. Return how many texts it does not translate."""
    folder = LOCALE / language / "LC_MESSAGES"
    folder.mkdir(parents=True, exist_ok=True)
    po = folder / "django.po"
    with po.open("rb") if po.exists() else io.BytesIO() as file:
        catalogue = read_po(file, locale=language)
    catalogue.update(texts(), no_fuzzy_matching=True)
    catalogue.obsolete.clear()
    with po.open("wb") as file:
        write_po(file, catalogue, include_lineno=False, sort_output=True)
    with po.with_suffix(".mo").open("wb") as file:
        write_mo(file, catalogue)
    return sum(not translated(message) for message in catalogue if message.id)


def translated(message: Message) -> bool:
    """Return whether a text has its translation, in every number."""
    told = message.string
    return bool(told) and (isinstance(told, str) or all(told or ()))


def main(languages: list[str]) -> None:
    """Write the catalogues of these languages and of all that there are."""
    there = [path.name for path in LOCALE.iterdir()] if LOCALE.exists() else []
    for language in sorted({*languages, *there}):
        print(f"{language}: {write(language)} texts are not translated")


if __name__ == "__main__":
    main(sys.argv[1:])

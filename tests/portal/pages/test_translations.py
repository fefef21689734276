"""Texts of pages can be translated: none stands in a template without a mark, and a person chooses the language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from babel.messages.mofile import write_mo
from django.conf import settings
from django.template.base import Lexer, TokenType
from django.test import Client
from django.utils import formats, translation
from django.utils.translation import trans_real
from pytest_django.fixtures import Settings

from portal import translations
from tenants.models import User
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PROFILE = "/portal/account/profile/"
#: Attributes that a person reads or hears.
READ = {"title", "aria-label", "placeholder", "alt", "data-confirm"}
#: Elements of which the content is for machines: commands, scripts, drawings.
MACHINES = {"script", "style", "pre", "code", "kbd", "textarea"}
#: What is the same in every language: names, formats, how keys begin.
SAME = {"Hearth", "CSV", "JSON", "PDF", "XML", "hk_", "hs_"}
#: Documents, not pages: in the language of who makes them out. Django's own administration has its own words.
LEFT_OUT = ("billing/", "admin/", "mail/")


class Texts(HTMLParser):
    """The visible texts of some HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes that are read; an option without a value has its value as its text."""
        self.found += [value or "" for name, value in attrs if name in READ]
        if tag in MACHINES or (tag == "option" and "value" not in dict(attrs)):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        if tag in self.within:
            self.within.remove(tag)

    def handle_data(self, data: str) -> None:
        """Note a text."""
        if not self.within:
            self.found.append(data)


def texts_of(html: str) -> list[str]:
    """Return the texts of some HTML that have words."""
    parser = Texts()
    parser.feed(html)
    parser.close()
    words = [" ".join(text.split()) for text in parser.found]
    return [text for text in words if text[:1] not in ("[", "{") and set(re.findall(r"[A-Za-z]+_?", text)) - SAME]


def without_marked_texts(source: str) -> str:
    """Return a template without its tags and variables, and without the texts that are marked for translation."""
    kept = []
    is_marked = False
    for token in Lexer(source).tokenize():
        name = token.contents.split(None, 1)[0] if token.token_type == TokenType.BLOCK else ""
        if name == "blocktranslate":
            is_marked = True
        elif name == "endblocktranslate":
            is_marked = False
        elif token.token_type == TokenType.TEXT and not is_marked:
            kept.append(token.contents)
    return "".join(kept)


def test_every_text_of_a_template_is_marked_for_translation() -> None:
    missed = {
        path.relative_to(translations.TEMPLATES).as_posix(): found
        for path in sorted(translations.TEMPLATES.rglob("*.html"))
        if not path.relative_to(translations.TEMPLATES).as_posix().startswith(LEFT_OUT)
        and (found := texts_of(without_marked_texts(path.read_text())))
    }
    assert missed == {}


@pytest.fixture
def bracketed(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A language in which every text stands in brackets."""
    folder = tmp_path / "xx" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    catalogue = translations.texts()
    for message in catalogue:
        if message.id:
            many = not isinstance(message.id, str)
            message.string = tuple(f"⟦{each}⟧" for each in message.id) if many else f"⟦{message.id}⟧"
    with (folder / "django.mo").open("wb") as file:
        write_mo(file, catalogue)
    settings.LOCALE_PATHS = [tmp_path]
    settings.LANGUAGES = [("en", "English"), ("xx", "Brackets")]
    monkeypatch.setattr(trans_real, "_translations", {})
    yield "xx"
    translation.activate("en")


def test_pages_are_shown_in_the_language_that_a_person_chose(world: World, signed_in: SignIn, bracketed: str) -> None:
    User.objects.filter(id=world.acme.owner.id).update(language=bracketed)
    owner = signed_in(world.acme.owner)
    answer = owner.get("/portal/tenants/acme/requests/")
    page = answer.content.decode()
    assert (answer["Content-Language"], '<html lang="xx">' in page) == ("xx", True)
    assert "⟦No matching requests⟧" in page
    assert "⟦" not in signed_in(world.globex.owner).get("/portal/tenants/globex/requests/").content.decode()
    assert "⟦" not in owner.get("/api/v1/tenants/acme/nothing").content.decode()


def test_a_stranger_reads_the_language_of_the_browser(world: World, bracketed: str) -> None:
    login = Client().get("/portal/login/", headers={"accept-language": "xx, en;q=0.5"})
    assert "⟦Sign in⟧" in login.content.decode()
    assert "⟦" not in Client().get("/portal/login/", headers={"accept-language": "tlh"}).content.decode()


def test_a_person_chooses_among_the_languages_there_are(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    assert owner.post(PROFILE, {"language": "en"}).status_code == 302
    assert User.objects.get(id=world.acme.owner.id).language == "en"
    assert owner.post(PROFILE, {"language": "tlh"}).status_code == 400


@pytest.mark.parametrize("language", [code for code, _ in settings.LANGUAGES])
def test_numbers_look_the_same_in_every_language(language: str) -> None:
    with translation.override(language):
        assert formats.localize(1234.5) == "1234.5"
        assert (translations.LOCALE / language).is_dir() or language == settings.LANGUAGE_CODE

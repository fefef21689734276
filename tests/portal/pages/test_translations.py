"""Texts of pages can be translated: none stands in a template without a mark, and a person chooses the language."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from babel.messages.mofile import write_mo
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.core.mail import EmailMessage
from django.template.base import Lexer, TokenType
from django.test import Client
from django.utils import formats, timezone, translation
from django.utils.translation import trans_real
from pytest_django.fixtures import Settings

from notifications import dispatch, event_types
from notifications.mail import sending, texts
from notifications.models import Event
from portal import translations
from portal.access.requests import languages
from portal.forms.billing import countries
from portal.live import topics
from portal.templatetags import script_words
from tenants.models import Membership, User
from tests.notifications.webhooks.conftest import happen
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PROFILE = "/portal/account/profile/"
#: Attributes that a person reads or hears.
READ = {"title", "aria-label", "placeholder", "alt", "data-confirm"}
#: Elements of which the content is for machines: commands, scripts, drawings.
MACHINES = {"script", "style", "pre", "code", "kbd", "textarea"}
SCRIPTS = translations.PORTAL / "static" / "portal"
#: What is the same in every language: names, formats, how keys begin.
SAME = {"Hearth", "CSV", "JSON", "PDF", "XML", "hk_", "hs_"}
#: CLDR has them in every language but the one of this test.
COUNTRIES = {name for _, name in countries.names()}
#: Documents, not pages: in the language of who makes them out. Django's own administration has its own words.
LEFT_OUT = ("billing/", "admin/")
#: Pages of bills, of which Python still puts some texts together.
NOT_YET_MARKED = (
    *("pages/operator/billing/", "pages/tenant/billing.py", "pages/tenant/invoice", "pages/tenant/statements.py"),
    *("pages/tenant/savings_statements.py", "forms/billing/"),
)


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
    words = [text for text in words if text not in COUNTRIES]
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
        for path in sorted([*translations.TEMPLATES.rglob("*.html"), *translations.TEMPLATES.rglob("*.txt")])
        if not path.relative_to(translations.TEMPLATES).as_posix().startswith(LEFT_OUT)
        and (found := texts_of(without_marked_texts(path.read_text())))
    }
    assert missed == {}


#: Prose: two words of which the second is in lower case, or a word that ends a sentence. ``…`` stands for a value.
PROSE = re.compile(r"[A-Za-z…]+[,:;]? [a-z]{2,}|[a-z]{2,} …|\w[.]$")


def put_together(source: str) -> list[str]:
    """Return the prose that Python puts together by f-strings, and what messages say, without a mark."""
    tree = ast.parse(source)
    # what an error says of itself is for logs and the API
    raised = {id(each) for found in ast.walk(tree) if isinstance(found, ast.Raise) for each in ast.walk(found)}
    texts = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in each.values)
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr) and id(each) not in raised
    ]
    said = [
        each.args[1].value
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and ast.unparse(each.func).startswith("messages.")
        if isinstance(each.args[1], ast.Constant) and isinstance(each.args[1].value, str)
    ]
    return [text for text in texts if PROSE.search(text)] + said


def test_no_text_of_a_page_is_put_together_without_a_mark() -> None:
    missed = {
        name: found
        for folder in ("pages", "forms", "reporting/advice", "reporting/requests")
        for path in sorted((translations.PORTAL / folder).rglob("*.py"))
        if not (name := path.relative_to(translations.PORTAL).as_posix()).startswith(NOT_YET_MARKED)
        and (found := put_together(path.read_text()))
    }
    assert missed == {}
    assert put_together('messages.info(request, "Done.")') == ["Done."]
    assert put_together('messages.info(request, f"{name} is {state}.")') == ["… is …."]


def test_a_time_in_an_attribute_is_text() -> None:
    """The filter ``moment`` writes an element, which would end the attribute."""
    within = re.compile(r'="[^"]*[|]moment')
    assert [path.name for path in translations.TEMPLATES.rglob("*.html") if within.search(path.read_text())] == []


@cache
def in_brackets() -> bytes:
    """Return a compiled catalogue in which every text stands in brackets."""
    catalogue = translations.texts()
    for message in catalogue:
        if message.id:
            many = not isinstance(message.id, str)
            message.string = tuple(f"⟦{each}⟧" for each in message.id) if many else f"⟦{message.id}⟧"
    file = BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


@pytest.fixture
def bracketed(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A language in which every text stands in brackets."""
    folder = tmp_path / "xx" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "django.mo").write_bytes(in_brackets())
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


#: Of a tenant. The audit log is left out: its rows are in the API's words.
PAGES = (
    *("", "models/", "requests/", "savings/", "statement/", "billing/", "prices/", "keys/", "limits/", "policy/"),
    *("usage/", "advisor/", "invoices/", "webhooks/", "projects/", "members/", "cache/", "sign-in/"),
)
#: Names of this test's tenants, models and people, and words of the API that pages show as they are: states, scopes,
#: roles, settings' values, types of events. Units, and what formats of numbers and times write.
DATA = re.compile(
    r"/v1/[a-z/]+|HTTP [0-9]+|engine|"
    r"acme(-owner)?|globex|tiny-chat|ada|laptop|demo|[dD]efault|Acme|Hearth|CSV|UTC|USD|KiB|MiB|GiB|ms|min|p50|p95|p99|"
    r"hit|miss|interrupted|prefix|standard|cheapest|deterministic|week|month|tenant|project|inference|"
    r"cache:\w+|management:\w+|hk_\w+|hearth\.[\w.]+|x-session-id|owner|admin|billing|developer|viewer|"
    r"(January|February|March|April|May|June|July|August|September|October|November|December)|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec|[0-9a-f-]{8,}"
)
#: Texts of these pages that are not marked yet: Python puts them together from parts.
NOT_MARKED = re.compile(r"all models|\$0.00 each|answers|tokens|hearth = owner engineering = billing|each")


def without_brackets(text: str) -> str:
    """Return what of a text stands outside of brackets; one text may stand within another."""
    while (shorter := re.sub(r"⟦[^⟦⟧]*⟧", "", text)) != text:
        text = shorter
    return text


def unmarked(html: str) -> set[str]:
    """Return the texts of a page that are neither translated nor data nor known to be not marked."""
    # a text with links or code inside is one text: its elements do not end it
    inline = re.sub(r"</?(a|b|strong|code|span|time)\b[^>]*>", "", html)
    found = (without_brackets(text) for text in texts_of(inline))
    return {text for text in found if re.search(r"[A-Za-z]{2}", DATA.sub("", NOT_MARKED.sub("", text)))}


def test_every_text_of_a_tenants_pages_is_translated(world: World, signed_in: SignIn, bracketed: str) -> None:
    fixtures.fleet(world)
    moment = timezone.now() - timedelta(minutes=30)
    fixtures.store([fixtures.answered(world, world.acme, moment, 1), fixtures.failed(world, world.acme, moment, 2)])
    User.objects.filter(id=world.acme.owner.id).update(language=bracketed)
    owner = signed_in(world.acme.owner)
    requests = (f"requests/{fixtures.request_id(moment, number)}/" for number in (1, 2))
    pages = (*PAGES, *requests)
    missed = {page: unmarked(owner.get(f"/portal/tenants/acme/{page}").content.decode()) for page in pages}
    assert {page: texts for page, texts in missed.items() if texts} == {}


def test_live_pages_speak_the_language_of_their_viewers(world: World, bracketed: str) -> None:
    usual = topics.usage_of_tenant(world.acme.tenant, "24h", "UTC", None)
    assert topics.in_language(usual, "en") is usual
    live = topics.in_language(usual, bracketed)
    assert (live.name, live.tenant_id) == (f"{usual.name}.xx", usual.tenant_id)
    assert "⟦" in live.read().whole
    assert "⟦" not in usual.read().whole
    assert languages.language_of(AnonymousUser(), "fr, xx;q=0.8") == bracketed
    assert languages.language_of(User(language="xx"), "en") == bracketed
    assert languages.language_of(User(language="gone"), "") == "en"


@pytest.mark.parametrize("whose", ["tenant", "platform"])
def test_every_text_of_an_e_mail_is_translated(world: World, bracketed: str, whose: str) -> None:
    tenant = world.acme.tenant if whose == "tenant" else None
    with translation.override(bracketed):
        for kind in event_types.EVENT_TYPES:
            found = texts.of(Event(type=kind.name, tenant=tenant, data=dict.fromkeys(kind.fields, 2)))
            named = re.compile("|".join((r"https?://\S+", *kind.fields)))
            assert unmarked(named.sub("", f"{found.subject} {found.body}")) == set(), kind.name


def test_an_e_mail_is_in_the_language_of_its_recipient(
    world: World, bracketed: str, settings: Settings, mailoutbox: list[EmailMessage]
) -> None:
    settings.EMAIL_IS_SENT = True
    for role, language in (("owner", bracketed), ("billing", "")):
        user = User.objects.create(username=role, email=f"{role}@example.com", language=language)
        Membership.objects.create(tenant=world.acme.tenant, user=user, role=role)
    happen(world.acme.tenant)
    dispatch.run()
    assert sending.send_due() == 2
    subjects = {mail.to[0]: mail.subject for mail in mailoutbox}
    assert subjects == {
        "owner@example.com": "⟦Acme has spent 80 % of a budget⟧",
        "billing@example.com": "Acme has spent 80 % of a budget",
    }


def test_texts_of_scripts_are_on_the_page_in_its_language(world: World, signed_in: SignIn, bracketed: str) -> None:
    said = {path.name: set(re.findall(r'\bsay\("([^"]+)"[,)]', path.read_text())) for path in SCRIPTS.glob("*.js")}
    playground = said.pop("playground.js")
    assert (set().union(*said.values()), playground) == (set(script_words.EVERYWHERE), set(script_words.PLAYGROUND))
    owner = signed_in(world.acme.owner)
    assert "data-words" not in owner.get("/portal/tenants/acme/").content.decode()
    User.objects.filter(id=world.acme.owner.id).update(language=bracketed)
    assert '"Copied": "\\u27e6Copied\\u27e7"' in owner.get("/portal/tenants/acme/").content.decode()
    assert '"Send again": "\\u27e6Send again\\u27e7"' in owner.get("/portal/tenants/acme/playground/").content.decode()


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


#: Of operators. The audit log, events of the fleet and the fleet file are in the API's words; the form of prices has
#: the columns of its file.
OF_OPERATORS = (
    *("", "fleet/", "routing/", "requests/", "usage/", "savings/", "models/", "deploy-model/", "tenants/", "plans/"),
    *("billing/", "reservations/", "months/", "invoices/", "payments/", "dunning/", "issuers/", "costs/"),
    *("reconciliation/", "alerts/", "webhooks/", "secrets/", "operators/", "retention/", "scraping/", "nodes/"),
    *(f"models/{fixtures.MODEL}/", "fleet/placeholder-costs/", "e-mails/", "tenants/acme/policy/"),
)
#: Of these pages: what fixtures, engines and the fleet's own records are called, roles and kinds, and sentences with a
#: threshold of the code.
OF_FLEET = re.compile(
    r"[lL]ocal|simulated|[pP]latform|[gG]lobex|"
    r"UTC|vLLM|expected-seconds|cpu-[0-9]|n1|IBAN|BIC|H2|H0|slot [0-9]|\b(low|high)\b|"
    r"(requested|starting|warming|ready)( → \w+: as planned)?|background|portal|gateway|beat|control|/metrics|"
    r"operator|finance|requests|events|decisions|deferred|audit|\d+ (hours|days)|[0-9a-f]{6}|"
    r"The agent of a node .* silent for 30 s\.|Usage has waited over 60 s .*|The disk of HEARTH_DATA_DIR .*|"
    r"[a-z]+(-[a-z]+)+|\bs\b|dunning|disk|certificate|none"
)


def test_every_text_of_operators_pages_is_translated(world: World, signed_in: SignIn, bracketed: str) -> None:
    fixtures.fleet(world)
    moment = timezone.now() - timedelta(minutes=30)
    fixtures.store([fixtures.answered(world, world.acme, moment, 1), fixtures.failed(world, world.acme, moment, 2)])
    User.objects.filter(id=world.operator.id).update(language=bracketed)
    operator = signed_in(world.operator)
    answers = {page: operator.get(f"/portal/{page}") for page in OF_OPERATORS}
    assert {page: answer.status_code for page, answer in answers.items() if answer.status_code != 200} == {}
    missed = {
        page: {text for text in unmarked(answer.content.decode()) if re.search("[A-Za-z]{2}", OF_FLEET.sub("", text))}
        for page, answer in answers.items()
    }
    assert {page: found for page, found in missed.items() if found} == {}

"""The documentation at /docs/: complete, for everybody, and the address that errors of the gateway name."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from gateway import errors
from portal.documentation.documents import Document, documents, explained, management_errors
from portal.documentation.documents import errors as error_pages
from portal.documentation.rendering import html

ROOT = Path(__file__).parents[3]
#: Django's HTML has these around what a page says.
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=", re.IGNORECASE)


def named_codes() -> set[str]:
    """Return the codes that docs/api.md lists, and those with which the gateway's code makes an error."""
    listed = re.findall(r"^\| [0-9]{3} \| ([^|]*) \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    found = {code for cell in listed for code in re.findall(r"`([a-z_]+)`", cell)}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    for path in (ROOT / "platform" / "gateway").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in kinds:
                values = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "code")]
                found |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    return found


def test_each_error_code_has_a_section_and_no_other() -> None:
    assert set(error_pages()) == named_codes()


def codes_of_the_management_api() -> set[str]:
    """Return the codes that the portal's code names, and those that REST framework has for a whole request."""
    found = {"not_found", "parse_error", "unsupported_media_type", "not_acceptable", "not_authenticated"}
    for path in (ROOT / "platform" / "portal").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                place = {"envelope": 2, "PermissionDenied": 1, "AuthenticationFailed": 1}.get(call.func.id)
                values = call.args[place : place + 1] if place else []
                found |= {
                    each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
    return found | {"too_many_changes"}


def test_each_error_code_of_the_management_api_has_a_section_and_no_other() -> None:
    assert codes_of_the_management_api() - set(error_pages()) == set(management_errors())
    assert set(management_errors()) & set(error_pages()) == set()


@pytest.mark.django_db
def test_an_error_of_the_management_api_names_the_page_about_its_code(client: Client, settings: LazySettings) -> None:
    settings.PORTAL_URL = "https://portal.example.com"
    error = client.get("/api/v1/tenants").json()["error"]
    assert error["doc_url"] == "https://portal.example.com/docs/errors/not_authenticated"
    assert client.get("/docs/errors/not_authenticated").status_code == 200
    sections = {explained(code, status) for code, status in (("tenant_not_found", 404), ("max_length", 400))}
    assert sections == {"not_found", "invalid_value"}
    assert explained("invalid_value", 400) == "invalid_value"


@pytest.mark.django_db
def test_a_stranger_reads_every_page_and_each_link_leads_somewhere(client: Client) -> None:
    addresses = [
        "/docs/",
        *(f"/docs/{slug}/" for slug in documents()),
        *(f"/docs/errors/{c}" for c in (*error_pages(), *management_errors())),
    ]
    pages = {address: client.get(address) for address in addresses}
    assert {page.status_code for page in pages.values()} == {200}
    ids = {address: set(re.findall(r' id="([^"]+)"', page.text)) for address, page in pages.items()}
    for address, page in pages.items():
        assert not INLINE.search(page.text), address
        for target in re.findall(r'href="(/docs/[^"]*)"', page.text):
            there, _, anchor = target.partition("#")
            assert there in pages or there == "/docs/api/", (address, target)
            assert not anchor or anchor in ids[there], (address, target)


@pytest.mark.django_db
def test_examples_show_the_readers_own_addresses(client: Client, settings: LazySettings) -> None:
    settings.API_URL = "https://api.example.com"
    settings.ALLOWED_HOSTS = ["portal.example.com"]
    shown = client.get("/docs/", headers={"host": "portal.example.com"}).text
    assert "https://api.example.com/v1/chat/completions" in shown
    assert "127.0.0.1" not in shown


@pytest.mark.django_db
def test_an_unknown_page_is_not_found_and_tells_nothing(client: Client) -> None:
    for address in ("/docs/nosuch/", "/docs/errors/nosuch", "/docs/..%2fapi/", "/docs/errors/"):
        assert client.get(address).status_code == (200 if address == "/docs/errors/" else 404), address


def test_html_in_a_document_or_a_models_name_stays_text() -> None:
    page = Document(slug="x", title="x", text="# x\n\n<b>bold</b> MODEL [a](javascript:alert(1))\n\n    MODEL\n")
    shown = html(page, root="/docs/", api_url="", portal_url="", model="<script>alert(1)</script>")
    assert "<script" not in shown
    assert "<b>" not in shown
    assert 'href="javascript' not in shown


def test_a_picture_that_nothing_serves_is_left_out() -> None:
    page = Document(slug="x", title="x", text="# x\n\nBefore ![The page](images/x.png) after.\n")
    assert "<p>Before  after.</p>" in html(page, root="/docs/", api_url="", portal_url="", model="m")


@pytest.mark.django_db
def test_the_reference_may_call_the_gateway_and_runs_no_inline_script(client: Client, settings: LazySettings) -> None:
    settings.API_URL = "https://api.example.com"
    page = client.get("/docs/api/")
    assert page.status_code == 200
    assert not INLINE.search(page.text)
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert " https://api.example.com;" in policy
    script = client.get("/docs/api/?script=")
    assert "/api/v1/openapi.json" in script.text


def test_an_error_names_its_page(settings: LazySettings) -> None:
    settings.PORTAL_URL = "https://portal.example.com"
    body = json.loads(errors.BadRequest("No.", "invalid_value", "n").body())
    assert body["error"]["doc_url"] == "https://portal.example.com/docs/errors/invalid_value"
    settings.PORTAL_URL = ""
    assert "doc_url" not in json.loads(errors.BadRequest("No.", "invalid_value").body())["error"]

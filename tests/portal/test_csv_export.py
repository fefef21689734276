"""A cell that a spreadsheet would run as a formula is text in an export."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import datetime

import pytest
from django.test import Client, RequestFactory
from django.utils import timezone

from portal.formats import csv_export, table_csv
from portal.pages import audit as audit_page
from portal.pages.operator import operators as operators_page
from portal.pages.operator import tenants as tenants_page
from portal.pages.tenant import keys as keys_page
from portal.pages.tenant import members as members_page
from tenants import registry
from tenants.keys import keys
from tenants.models import User
from tenants.people import invitations
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_formula_is_exported_as_text(start: str) -> None:
    assert exported(f"{start}HYPERLINK(A1)") == f"'{start}HYPERLINK(A1)"


@pytest.mark.parametrize("cell", ["-1.5", "+2", "a=b", "", "1e3"])
def test_numbers_and_names_are_exported_as_they_are(cell: str) -> None:
    assert exported(cell) == cell


def exported(cell: str) -> str:
    """Return the cell as it stands in the file."""
    answer = csv_export.attachment(RequestFactory().get("/"), "x", ["a"], [[cell]])
    text = b"".join(answer).decode()
    return list(csv.reader(io.StringIO(text, newline="")))[1][0] if cell else cell


# -------------------------------------------------------------------------------------------- tables of pages


def table(client: Client, path: str, name: str, **query: str) -> list[list[str]]:
    """Return the CSV of a table of a page."""
    answer = client.get(path, {**query, "csv": name})
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8"), path
    return list(csv.reader(io.StringIO(answer.content.decode(), newline="")))


def test_the_csv_of_a_table_has_all_rows_though_the_page_shows_some(
    world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_page, "MAX_ROWS", 1)
    for name in ("=cmd()", "other"):
        keys.issue(fixtures.OPERATOR, world.acme.project, name=name, scopes=["inference"])
    owner, path = signed_in(world.acme.owner), "/portal/tenants/acme/keys/"
    assert owner.get(path).content.decode().count('data-testid="key-') == 1 + 1  # and the button to create one
    header, *rows = table(owner, path, "keys")
    assert (header[:3], header[-1]) == (["Name", "Key", "Project"], "Expires")
    assert [row[0] for row in rows] == ["other", "'=cmd()", "demo"]
    assert datetime.fromisoformat(rows[0][6]) < timezone.now()
    assert signed_in(world.globex.owner).get(path, {"csv": "keys"}).status_code == 404
    unknown = owner.get(path, {"csv": "members"})
    assert (unknown.status_code, "keys" in unknown.content.decode()) == (400, True)


def test_the_csv_of_a_table_keeps_the_filters_of_its_page_and_says_that_it_is_cut(
    world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "PAGE_ROWS", 1)
    monkeypatch.setattr(table_csv, "MOST_ROWS", 2)
    long = "x" * 60
    for name in (long, "second", "third"):
        keys.issue(fixtures.OPERATOR, world.acme.project, name=name, scopes=["inference"])
    owner, path = signed_in(world.acme.owner), "/portal/tenants/acme/audit/"
    rows = table(owner, path, "audit", action="key.issued")[1:]
    assert [row[2] for row in rows[:2]] == ["key.issued", "key.issued"]
    assert rows[2:] == [["Only the first 2 rows. Choose fewer with the filters of the page."]]
    monkeypatch.setattr(table_csv, "MOST_ROWS", 100)
    rows = table(owner, path, "audit", action="key.issued")[1:]
    assert {row[2] for row in rows} == {"key.issued"}
    assert long in rows[2][3]


def test_the_csv_of_an_operators_table_has_all_rows(
    world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants_page, "MOST_ROWS", 1)
    monkeypatch.setattr(tenants_page, "MAX_VERSIONS", 1)
    registry.set_policy(fixtures.OPERATOR, world.acme.tenant, queue_seconds=7)
    operator = signed_in(world.operator)
    assert len(table(operator, "/portal/tenants/", "tenants")) > 2
    assert len(table(operator, "/portal/tenants/acme/policy/", "versions")) == 1 + 2


def test_the_csv_of_invitations_has_all_though_the_page_shows_the_newest(
    world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of_page, tenant, role, user, path in (
        (members_page, world.acme.tenant, "viewer", world.acme.owner, "/portal/tenants/acme/members/"),
        (operators_page, None, "viewer", world.operator, "/portal/operators/"),
    ):
        monkeypatch.setattr(of_page, "MAX_INVITATIONS", 1)
        for _ in range(2):
            invitations.invite(fixtures.OPERATOR, tenant, role)
        browser = signed_in(user)
        assert browser.get(path).content.decode().count('data-testid="invitation-') == 1
        assert len(table(browser, path, "invitations")) == 1 + 2

"""Pages as people with a screen reader, low vision or a phone meet them: axe finds nothing, all is in view."""

from __future__ import annotations

import csv

import pytest
from playwright.sync_api import Page, expect

from tests.portal.browser import sign_in, violations
from tests.portal.portal_process import other_connection

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TENANT = "tenants/acme/"


@pytest.mark.long
def test_axe_finds_nothing_in_a_refused_form(page: Page) -> None:
    sign_in(page, "ada")
    page.goto(f"/portal/{TENANT}limits/")
    page.locator("form", has=page.get_by_role("button", name="Set limit")).evaluate("form => form.noValidate = true")
    page.get_by_role("button", name="Set limit").click()
    page.get_by_role("alert").wait_for()
    assert violations(page) == []


def test_a_phone_shows_keys_amounts_changes_and_the_current_tab(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    sign_in(page, "ada")
    for path, seen in (
        ("keys/", "form [data-testid=key-create]"),
        ("statement/", "[data-testid=lines] tbody td:last-child .cell"),
        ("statement/", ".statement-total td:last-child"),
        ("audit/", "[data-testid=audit] tbody td:last-child .cell"),
        ("audit/", ".tabs [aria-current]"),
        ("policy/", ".tabs [aria-current]"),
    ):
        page.goto(f"/portal/{TENANT}{path}")
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider == 0, path
        box = page.locator(seen).first.bounding_box()
        assert box is not None
        assert box["x"] >= 0, seen
        assert box["x"] + box["width"] <= 390, seen


@pytest.mark.long
def test_long_changes_leave_the_audit_log_s_last_column_in_view(page: Page) -> None:
    with other_connection() as other:
        change = '{"name": "a department of a large company, again", "scopes": "inference, cache:read, cache:write"}'
        other.execute(
            "INSERT INTO tenants_auditentry (id, actor_kind, actor, action, object_kind, object_id, before, after)"
            " VALUES (gen_random_uuid(), 'user', 'somebody.with.a.long.name@example.com', 'cache_setting.removed',"
            " 'deployment', 'x', %s, %s)",
            [change, change],
        )
    page.set_viewport_size({"width": 1440, "height": 1000})
    sign_in(page, "ada")
    page.goto("/portal/audit/")
    beyond = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)")
    assert beyond == [0]


@pytest.mark.long
def test_the_keyboard_skips_the_rail_shows_its_focus_and_closes_dialogs(page: Page) -> None:
    sign_in(page, "ada")
    page.goto("/portal/fleet/")
    page.keyboard.press("Tab")
    skip = page.locator("a.skip")
    expect(skip).to_be_focused()
    box = skip.bounding_box()
    assert box is not None
    assert box["y"] >= 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    inside = "document.querySelector('main').contains(document.activeElement)"
    assert page.evaluate(inside)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.get_by_test_id("ask-scale").press("Enter")
    dialog = page.get_by_test_id("dialog")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(page.get_by_test_id("ask-scale")).to_be_focused()


@pytest.mark.long
def test_every_table_is_there_as_csv_and_runs_no_formula(page: Page) -> None:
    with other_connection() as other:
        other.execute(
            "INSERT INTO tenants_auditentry (id, actor_kind, actor, action, object_kind, object_id, after)"
            " VALUES (gen_random_uuid(), 'user', '=1+1', 'tenant.changed', 'tenant', 'x', '{\"name\": \"a, b\"}')"
        )
    sign_in(page, "ada")
    page.goto("/portal/audit/")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    path = download.value.path()
    rows = list(csv.reader(path.read_text().splitlines()))
    assert download.value.suggested_filename.endswith(".csv")
    assert rows[0][0] == "Time"
    assert any("'=1+1" in cell for row in rows for cell in row)
    assert all(len(row) == len(rows[0]) for row in rows)
    assert rows[1][0].endswith("+00:00")

"""A headless Chromium uses the portal; its console has no warnings and no errors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.portal import fixtures
from tests.portal.browser import sign_in
from tests.portal.portal_process import other_connection

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_an_operator_sees_usage_money_savings_and_the_fleet(page: Page, complaints: list[str]) -> None:
    sign_in(page, "ada")
    expect(page.get_by_test_id("tile-requests")).to_contain_text("4")
    expect(page.get_by_test_id("tile-billed")).to_contain_text("$0.000468")
    expect(page.get_by_test_id("tile-saved-prediction")).to_contain_text("$0.00021")
    expect(page.get_by_test_id("tile-saved-prefix")).to_contain_text("$0.000162")
    expect(page.locator("[data-testid=chart-requests] .chart[data-drawn] canvas")).to_be_visible()
    page.get_by_test_id("chart-money").get_by_text("Table").click()
    expect(page.get_by_test_id("chart-money").get_by_role("cell", name="$0.000468")).to_be_visible()
    page.get_by_test_id("by-tenant-acme").get_by_role("link").click()
    expect(page.get_by_test_id("tile-billed")).to_contain_text("$0.000312")
    page.get_by_test_id("tab-statement").click()
    expect(page.get_by_test_id("equals-ledger")).to_have_text("equals the ledger")
    expect(page.get_by_test_id("lines")).to_contain_text("1,200")
    page.get_by_test_id("rail-requests").click()
    expect(page.get_by_test_id("request")).to_have_count(4)
    page.get_by_test_id("request").first.click()
    expect(page.get_by_test_id("timeline")).to_contain_text("Charged $0.000156")
    assert complaints == []


def test_the_fleet_page_follows_what_happens(page: Page, complaints: list[str]) -> None:
    sign_in(page, "ada")
    expect(page.get_by_test_id("strip-placeholders")).to_contain_text("2 of 3")
    page.get_by_test_id("rail-fleet").click()
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
    expect(page.get_by_test_id("ready-count")).to_contain_text("as desired")
    expect(page.get_by_test_id("replica")).to_have_count(3)
    page.get_by_test_id("replica").last.locator("summary").click()
    with other_connection() as other:
        other.execute("UPDATE workers_replica SET state = 'ready', startup_seconds = 31 WHERE state = 'starting'")
    expect(page.get_by_test_id("replica").last).to_contain_text("cold start in 31 s")
    expect(page.get_by_test_id("replica").last.locator("details")).to_have_attribute("open", "")
    with other_connection() as other:
        other.execute("UPDATE workers_gatewayload SET held_requests = 7 WHERE held_requests > 0")
    expect(page.get_by_test_id("deployment-tiny-chat")).to_contain_text("7 requests")
    assert complaints == []


@pytest.mark.long
def test_an_operator_changes_the_fleet_after_a_question(page: Page, complaints: list[str]) -> None:
    page.set_viewport_size({"width": 1440, "height": 1200})
    sign_in(page, "ada")
    page.get_by_test_id("rail-fleet").click()
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
    keep_pictures(page, "fleet")
    page.get_by_test_id("ask-scale").click()
    dialog = page.get_by_test_id("dialog")
    expect(dialog).to_contain_text("celery -A hearth control scale tiny-chat 2-6")
    dialog.get_by_label("At least").fill("5")
    expect(dialog).to_contain_text("celery -A hearth control scale tiny-chat 5-6")
    keep_pictures(page, "scale")
    dialog.get_by_text("Cancel").click()
    expect(dialog).not_to_be_visible()
    page.get_by_test_id("ask-scale").click()
    dialog.get_by_label("At least").fill("5")
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_role("status").filter(has_text="5 to 6 replicas")).to_be_visible()
    expect(page.get_by_test_id("deployment-tiny-chat")).to_contain_text("2 of 5 ready")
    page.get_by_test_id("ask-promote").click()
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("node-n2").get_by_test_id("replica")).to_contain_text("is being promoted")
    page.get_by_test_id("ask-evict").click()
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("placeholder")).to_have_count(0)
    page.get_by_test_id("ask-restore").click()
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("slot-quarantined")).to_have_count(0)
    page.get_by_test_id("node-n1").get_by_test_id("ask-drain").first.click()
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("node-n1").get_by_test_id("replica").first).to_contain_text("leaving")
    assert complaints == []


@pytest.mark.long
def test_an_operator_pauses_and_undoes_a_rollout(page: Page, complaints: list[str]) -> None:
    page.set_viewport_size({"width": 1440, "height": 1200})
    sign_in(page, "ada")
    page.get_by_test_id("rail-fleet").click()
    dialog, rollout = page.get_by_test_id("dialog"), page.get_by_test_id("rollout")
    for ask, text in (
        ("ask-rollout-restart", "Rolling out, 0 of 0 new and 2 of 3 old replicas are ready."),
        ("ask-rollout-pause", "Paused, 0 of 0 new"),
        ("ask-rollout-undo", "Undoing, 0 of 0 new"),
    ):
        page.get_by_test_id(ask).click()
        expect(dialog).to_contain_text(
            f"celery -A hearth control {ask.removeprefix('ask-').replace('-', '_')} tiny-chat"
        )
        dialog.get_by_test_id("confirm").click()
        expect(rollout).to_contain_text(text)
        keep_pictures(page, ask.removeprefix("ask-"))
    assert complaints == []


@pytest.mark.long
def test_an_operator_makes_a_token_and_removes_a_node(page: Page, complaints: list[str]) -> None:
    with other_connection() as other:
        other.execute("UPDATE workers_node SET lease_expires_at = now() WHERE name = 'n2'")
    page.set_viewport_size({"width": 1440, "height": 1200})
    page.on("dialog", lambda dialog: dialog.accept())
    sign_in(page, "ada")
    page.get_by_test_id("rail-fleet").click()
    page.get_by_test_id("to-nodes").click()
    page.get_by_label("Pool").select_option("spare")
    page.get_by_test_id("token-make").click()
    expect(page.get_by_test_id("command")).to_have_text(re.compile("^hearth node join hn_"))
    keep_pictures(page, "nodes")
    page.reload()
    expect(page.get_by_test_id("command")).to_have_count(0)
    tokens = page.get_by_test_id("tokens")
    tokens.get_by_role("button", name="Revoke").click()
    expect(tokens).to_contain_text("revoked")
    expect(tokens.get_by_role("button", name="Revoke")).to_have_count(0)
    page.get_by_test_id("row-n2").get_by_test_id("ask-remove").click()
    dialog = page.get_by_test_id("dialog")
    expect(dialog).to_contain_text("hearth node remove n2")
    keep_pictures(page, "node-remove")
    dialog.get_by_label("Name of the node").fill("n2")
    dialog.get_by_test_id("confirm").click()
    expect(page.get_by_role("status").filter(has_text="Node n2 is removed")).to_be_visible()
    expect(page.get_by_test_id("row-n2")).to_have_count(0)
    assert complaints == []


@pytest.mark.long
def test_the_fleet_page_asks_when_no_socket_is_to_be_had(page: Page) -> None:
    page.route_web_socket(re.compile("/ws/fleet"), lambda socket: socket.close())
    sign_in(page, "ada")
    page.get_by_test_id("rail-fleet").click()
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", "polling")
    with other_connection() as other:
        other.execute("UPDATE workers_replica SET state = 'suspect' WHERE state = 'starting'")
    expect(page.get_by_test_id("replica").last).to_contain_text("suspect", timeout=10_000)


def test_a_member_makes_a_key_that_is_shown_once(page: Page, complaints: list[str]) -> None:
    sign_in(page, "acme-owner")
    expect(page).to_have_url(re.compile("/portal/tenants/acme/$"))
    page.get_by_test_id("rail-keys").click()
    page.get_by_label("Name", exact=True).fill("laptop")
    page.get_by_test_id("key-create").click()
    expect(page.get_by_test_id("secret")).to_have_text(re.compile("^hk_[a-z0-9]{12}_"))
    page.reload()
    expect(page.get_by_test_id("shown-before")).to_be_visible()
    expect(page.get_by_test_id("secret")).to_have_count(0)
    row = page.get_by_test_id("keys").get_by_role("row", name="laptop")
    row.get_by_test_id("change").click()
    page.get_by_label("Allowed networks").fill("192.0.2.0/24")
    keep_pictures(page, "key-change")
    page.get_by_test_id("confirm").click()
    expect(row).to_contain_text("192.0.2.0/24")
    row.get_by_test_id("rotate").click()
    keep_pictures(page, "key-rotate")
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("issued")).to_contain_text("replaces")
    expect(page.get_by_test_id("keys").get_by_role("row", name="laptop")).to_have_count(2)
    keep_pictures(page, "keys")
    assert complaints == []


@pytest.mark.long
def test_pages_fit_a_phone_and_their_tables_a_small_screen(page: Page, complaints: list[str]) -> None:
    with other_connection() as other:
        other.execute("UPDATE tenants_tenant SET slug = 'a-department-of-a-large-company' WHERE slug = 'globex'")
        other.execute("UPDATE billing_usagerollup SET requests = 12345678, prediction_hits = 2345678")
        other.execute("UPDATE billing_usagerollup SET coalesced_requests = 1234567, bypassed_requests = 3456789")
        other.execute("UPDATE billing_usagerollup SET avoided_tokens = 1234567890, avoided_engine_ms = 987654321")
        other.execute("UPDATE billing_usagerollup SET cached_prompt_tokens = 1234567890")
        other.execute("UPDATE billing_usagerollup SET saved_prediction_pico = -123456789000000000")
        other.execute("UPDATE billing_usagerollup SET saved_prefix_pico = 123456789000000000")
    page.set_viewport_size({"width": 390, "height": 844})
    sign_in(page, "ada")
    for path in (
        "",
        "fleet/",
        "fleet/file/",
        "fleet/placeholder-costs/",
        "nodes/",
        "requests/",
        "tenants/",
        "models/",
        "prices/",
        "audit/",
        "tenants/acme/statement/",
        "tenants/acme/limits/",
        "tenants/acme/cache/",
        "tenants/acme/policy/",
        "savings/",
        "tenants/acme/savings/",
    ):
        page.goto(f"/portal/{path}")
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider == 0, path
    page.set_viewport_size({"width": 1280, "height": 800})
    for path in ("requests/", "savings/", "tenants/acme/savings/", "tenants/acme/cache/"):
        page.goto(f"/portal/{path}")
        beyond = page.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)")
        assert beyond == [0] * len(beyond), path
        keep_pictures(page, f"small-{path.replace('/', '-')}")
        page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_test_id("to-savings").click()
    page.get_by_test_id("to-cache").click()
    expect(page.get_by_test_id("policy")).to_contain_text("1 MiB")
    assert complaints == []


@pytest.mark.long
def test_a_purge_asks_what_and_names_exactly_what_goes(page: Page, complaints: list[str]) -> None:
    sign_in(page, "ada")
    page.goto("/portal/tenants/acme/cache/")
    form = page.get_by_test_id("purge")
    questions: list[str] = []

    def agree(dialog: Dialog) -> None:
        questions.append(dialog.message)
        dialog.accept()

    page.on("dialog", agree)
    expect(form.get_by_role("radio", checked=True)).to_have_count(0)
    form.get_by_role("button", name="Purge").click()
    form.get_by_label("One request", exact=True).check()
    form.get_by_label("Id of the one request").fill("0190a000-0000-7000-8000-000000000001")
    keep_pictures(page, "purge")
    form.get_by_label("A model").check()
    expect(form.get_by_label("Id of the one request")).not_to_be_visible()
    form.get_by_role("button", name="Purge").click()
    assert questions == []
    form.get_by_label("One request", exact=True).check()
    expect(form.get_by_label("Id of the one request")).to_have_value("")
    form.get_by_label("Id of the one request").fill("0190a000-0000-7000-8000-000000000002")
    form.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("status")).to_contain_text("the request 0190a000-0000-7000-8000-000000000002")
    form.get_by_label("A model").check()
    form.get_by_label("Which model").select_option(fixtures.MODEL)
    form.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("status")).to_contain_text(f"Purged: every answer of the model {fixtures.MODEL}.")
    assert [question.split("\n\n")[:2] for question in questions] == [
        ["Purge the answer to this one request of Acme?", "0190a000-0000-7000-8000-000000000002"],
        [f"Purge every answer of the model “{fixtures.MODEL}” that Acme has stored?", "This cannot be undone."],
    ]
    assert complaints == []


@pytest.mark.long
def test_charts_show_one_quarter_of_an_hour_what_was_lost_and_milliseconds(page: Page, complaints: list[str]) -> None:
    with other_connection() as other:
        other.execute("UPDATE billing_usagerollup SET saved_prediction_pico = -210000000, avoided_engine_ms = 90")
    sign_in(page, "ada")
    page.goto("/portal/tenants/acme/savings/")
    expect(page.locator(".chart[data-drawn]")).to_have_count(4)
    keep_pictures(page, "savings")
    assert marked(page, "hit-rates", "--ember", (0, 1))
    assert not marked(page, "saved", "--ember", (0, 0.25))
    assert marked(page, "saved", "--ember", (0.4, 1))
    expect(page.get_by_test_id("chart-saved")).to_contain_text("−$0.00021")
    expect(page.get_by_test_id("chart-engine-seconds").locator(".legend")).to_contain_text("90 ms")
    assert marked(page, "engine-seconds", "--ember", (0, 1))
    assert complaints == []


def marked(page: Page, chart: str, colour: str, part: tuple[float, float]) -> bool:
    """Return whether a chart has pixels of this colour between two parts of its height, 0 at the top."""
    found: bool = page.evaluate(
        """([chart, name, from, to]) => {
            const canvas = document.querySelector(`[data-testid=chart-${chart}] canvas`);
            const copy = new OffscreenCanvas(canvas.width, canvas.height);
            const pen = copy.getContext("2d", { willReadFrequently: true });
            pen.drawImage(canvas, 0, 0);
            pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
            const wanted = pen.fillStyle.match(/\\w\\w/g).map(each => parseInt(each, 16));
            const top = Math.round(canvas.height * from), height = Math.round(canvas.height * (to - from));
            const { data } = pen.getImageData(0, top, canvas.width, height);
            for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] === 255 && wanted.every((each, k) => Math.abs(data[i + k] - each) < 3)) return true;
            }
            return false;
        }""",
        [chart, colour, *part],
    )
    return found


def keep_pictures(page: Page, name: str) -> None:
    """Save screenshots (light, dark, phone) if HEARTH_TEST_PICTURES names a folder."""
    folder = os.environ.get("HEARTH_TEST_PICTURES")
    if not folder:
        return
    page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=str(Path(folder) / f"{name}-dark.png"), full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    page.screenshot(path=str(Path(folder) / f"{name}-phone.png"), full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 1200})

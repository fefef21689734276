"""A person signs in to the portal and sees what was just asked, what it saved, and what runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.journey.instance import MODEL, Instance
from tests.journey.pictures import keep_picture

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.browser]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium once."""
    executable = shutil.which("chromium")
    assert executable is not None, "chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, instance: Instance) -> Iterator[Page]:
    """Return a page that is signed in as the operator; an error on its console fails the test."""
    context = chromium.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(instance.portal_url)
    page.fill("input[name=username]", str(instance.up["admin"]["username"]))
    page.fill("input[name=password]", str(instance.up["admin"]["password"]))
    page.get_by_test_id("sign-in").click()
    expect(page.get_by_test_id("signed-in-as")).to_have_text("admin")
    yield page
    context.close()
    assert problems == []


def test_the_operator_sees_the_requests_the_hit_the_savings_and_the_fleet(page: Page, instance: Instance) -> None:
    prompt = f"{uuid4()} What does the portal show?"
    asked = [instance.chat("acme", prompt) for _ in range(2)]
    miss, hit = (answer.headers["x-request-id"] for answer in asked)
    for request_id in (miss, hit):
        instance.usage("acme", request_id)

    page.goto(instance.portal_url)
    row = page.get_by_test_id("by-tenant-acme")
    expect(row).to_be_visible()
    billed, saved = row.locator("td").nth(8), row.locator("td").nth(9)
    expect(billed).to_contain_text("$")
    expect(saved).to_contain_text("$")
    expect(saved).not_to_have_text("$0.00")
    expect(page.get_by_test_id("tiles")).to_be_visible()
    keep_picture(page, "overview")

    page.goto(f"{instance.portal_url}requests/?tenant=acme")
    expect(page.locator(f'[data-request="{miss}"] td').nth(7)).to_have_text("miss")
    expect(page.locator(f'[data-request="{hit}"] td').nth(7)).to_have_text("hit")
    expect(page.locator(f'[data-request="{hit}"] td').nth(12)).to_contain_text("prediction")

    page.goto(f"{instance.portal_url}fleet/")
    replicas = page.get_by_test_id("replica")
    expect(replicas.filter(has_text=MODEL).filter(has_text="ready")).to_have_count(2, timeout=60_000)
    expect(page.get_by_test_id("live")).to_have_text("Live")
    keep_picture(page, "fleet")

    page.goto(f"{instance.portal_url}tenants/acme/statement/?month={datetime.now(UTC):%Y-%m}")
    expect(page.get_by_test_id("equals-ledger")).to_be_visible()
    expect(page.get_by_test_id("lines")).to_contain_text(MODEL)


def test_a_guessed_session_and_a_signed_out_browser_see_the_sign_in_page(chromium: Browser, instance: Instance) -> None:
    context = chromium.new_context()
    context.add_cookies(
        [{"name": instance.session_cookie, "value": "0123456789abcdef0123456789abcdef", "url": instance.portal_url}]
    )
    page = context.new_page()
    for path in ("", "fleet/", "requests/", "tenants/acme/", "tenants/acme/statement/", "audit/"):
        page.goto(instance.portal_url + path)
        expect(page.get_by_test_id("sign-in")).to_be_visible()
        assert "acme" not in page.inner_text("body")
    context.close()

"""People in a browser: an invitation becomes a member on a phone, and the support view shows no form."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.portal.browser import sign_in, violations
from tests.portal.fixtures import PASSWORD

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_an_invited_person_joins_on_a_phone_and_an_operator_sees_what_they_see(
    page: Page, complaints: list[str]
) -> None:
    sign_in(page, "ada")
    found = {}
    for path in ("operators/", "account/profile/", "tenants/acme/members/"):
        page.goto(f"/portal/{path}")
        found[path] = violations(page)
    page.get_by_test_id("invite").click()
    link = page.get_by_test_id("link").inner_text()
    page.goto("/portal/tenants/acme/")
    page.get_by_label("Reason").fill("Ticket 4711")
    page.get_by_test_id("support-start").click()
    page.goto("/portal/tenants/acme/members/")
    expect(page.get_by_test_id("support-view")).to_contain_text("as an owner of Acme does")
    expect(page.get_by_role("button", name="Remove")).to_have_count(0)
    found["support view"] = violations(page)
    page.get_by_test_id("support-end").click()
    expect(page.get_by_test_id("support-form")).to_be_visible()
    page.get_by_test_id("sign-out").click()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(link)
    found["invitation"] = violations(page)
    page.get_by_label("Sign-in name").fill("mary")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_test_id("accept").click()
    expect(page.get_by_text("You are a member of Acme now")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert {path: each for path, each in found.items() if each} == {}
    assert complaints == []

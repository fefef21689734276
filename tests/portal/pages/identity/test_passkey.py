"""A passkey in headless Chromium with a virtual authenticator: added, signs in alone or beside a password, removed."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.portal.browser import sign_in, with_authenticator
from tests.portal.fixtures import PASSWORD

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(240),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_passkey_signs_in_alone_and_beside_a_password_until_it_is_removed(
    page: Page, portal: str, complaints: list[str]
) -> None:
    base = with_authenticator(page, portal)
    page.goto(f"{base}/portal/login/")
    sign_in(page, "ada")
    page.goto(f"{base}/portal/account/passkeys/add/")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Passwordless").check()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_test_id("codes")).to_be_visible()
    page.get_by_test_id("sign-out").click()
    page.get_by_test_id("passkey").click()
    expect(page.get_by_test_id("signed-in-as")).to_have_text("ada")
    page.get_by_test_id("sign-out").click()
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_test_id("sign-in").click()
    page.get_by_test_id("use-passkey").click()
    expect(page.get_by_test_id("signed-in-as")).to_have_text("ada")
    page.goto(f"{base}/portal/account/passkeys/")
    passkey = page.get_by_test_id("passkeys").locator("tbody tr")
    expect(passkey).to_contain_text("Passkey 1")
    passkey.get_by_role("link", name="Remove").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No passkey yet")).to_be_visible()
    page.get_by_test_id("sign-out").click()
    sign_in(page, "ada")  # without a second factor again
    assert complaints == []

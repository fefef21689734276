"""A passkey in a headless Chromium with a virtual authenticator: added, signs in alone, and beside a password."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.portal.browser import sign_in
from tests.portal.fixtures import PASSWORD

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(240),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
#: Of a laptop: keeps passkeys, and knows its owner's finger.
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def test_a_passkey_signs_in_alone_and_beside_a_password(page: Page, portal: str, complaints: list[str]) -> None:
    base = portal.replace("127.0.0.1", "localhost")  # an address has no passkeys
    page.goto(f"{base}/portal/login/")
    sign_in(page, "ada")
    devices = page.context.new_cdp_session(page)
    devices.send("WebAuthn.enable")
    devices.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})
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
    assert complaints == []

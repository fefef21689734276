"""What a test does in a browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.portal.fixtures import PASSWORD


def sign_in(page: Page, name: str) -> None:
    """Sign in with the test password."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_test_id("sign-in").click()
    expect(page.get_by_test_id("signed-in-as")).to_have_text(name)

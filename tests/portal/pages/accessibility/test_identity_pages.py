"""Every page about signing in and one's account: axe finds nothing, and a phone shows it whole."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tenants.models import Tenant
from tenants.people import invitations
from tests.portal import fixtures
from tests.portal.browser import inspect, sign_in, with_authenticator
from tests.portal.fixtures import PASSWORD

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
OUTSIDE = (
    "login/",
    "login/acme/",
    "login/nosuch/",
    "password-reset/",
    "password-reset/sent/",
    "password-reset/1-x/",
    "password-reset/done/",
    "confirm-e-mail/x/",
    "account/inactive/",
    "invitation/hi_x/",
)
ACCOUNT = ("password/", "e-mail/", "second-factor/", "second-factor/app/", "passkeys/", "sessions/", "profile/")
#: What looks otherwise, or opens, with a passkey.
PASSKEY = ("second-factor/codes/", "second-factor/codes/make/", "second-factor/", "passkeys/", "passkeys/confirm/")


@pytest.fixture(autouse=True)
def mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A portal that sends e-mails."""
    monkeypatch.setenv("HEARTH_EMAIL_URL", "smtp://127.0.0.1:9")


@pytest.fixture
def invitation(portal: str) -> str:
    """The path of an invitation, with acme's sign-in provider beside it."""
    tenant = Tenant.objects.get(slug="acme")
    fixtures.sign_in_provider(tenant)
    return f"invitation/{invitations.invite(fixtures.OPERATOR, tenant, 'viewer').secret}/"


def test_pages_of_sign_in_and_account_suit_everybody(invitation: str, page: Page, portal: str) -> None:
    base = with_authenticator(page, portal)
    found: dict[str, list[str]] = {}

    def look(path: str, name: str = "") -> None:
        page.goto(f"{base}/portal/{path}")
        found[name or path] = inspect(page, f"identity_{(name or path).replace('/', '_')[:40]}")

    for path in (*OUTSIDE, invitation):
        look(path, "invitation" if path == invitation else "")
    page.goto(f"{base}/portal/login/")
    sign_in(page, "ada")
    look("account/passkeys/add/", "confirm with the password")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    for path in ACCOUNT:
        look(f"account/{path}")
    look("account/passkeys/add/")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_test_id("codes")).to_be_visible()
    for path in (
        "second-factor/codes/",
        "second-factor/codes/make/",
        "second-factor/",
        "passkeys/",
        "passkeys/confirm/",
    ):
        look(f"account/{path}", f"with a passkey {path}")
    page.goto(f"{base}/portal/account/passkeys/")
    page.get_by_role("link", name="Remove").click()
    found["remove a passkey"] = inspect(page, "identity_remove")
    page.get_by_test_id("sign-out").click()
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_test_id("sign-in").click()
    page.get_by_test_id("use-passkey").wait_for()
    found["second factor"] = inspect(page, "identity_second_factor")
    page.get_by_label("Code of your app").fill("000000")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_test_id("problem").wait_for()
    found["a wrong code"] = inspect(page, "identity_wrong_code")
    assert [f"{where}: {each}" for where, what in found.items() for each in what] == []

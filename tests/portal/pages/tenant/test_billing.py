"""The page Billing: credit, its history, and what operators do with it."""

from __future__ import annotations

import re
from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from billing.accounts import balance
from billing.models import CreditEntry, CreditRequest
from tenants.models import User
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/tenants/acme/billing/"
FORM = "/portal/tenants/acme/credit/"
TEN = {"kind": "top_up", "amount": "10", "key": "page-1", "reference": "payment 7"}


def text(browser: Client, address: str = PAGE) -> str:
    return browser.get(address).content.decode()


def total(world: World) -> int:
    return balance.of(world.acme.tenant.id).total_pico // 10**12


def take_back(browser: Client, entry: CreditEntry, key: str | None = None) -> str:
    """Press the button of an entry, by default on a page that is new; return the key of the form."""
    if key is None:
        forms = re.findall(r'name="key" value="([^"]+)"', text(browser))
        key = next((each for each in forms if str(entry.id) in each), f"none {entry.id}")
    browser.post(f"{FORM}{entry.id}/reverse/", {"reason": "a mistake", "key": key})
    return key


def test_a_form_sent_twice_posts_once_and_the_tenant_sees_it(signed_in: SignIn, world: World) -> None:
    browser, owner = signed_in(world.operator), signed_in(world.acme.owner)
    for _ in range(2):
        assert browser.post(f"{FORM}change/", TEN).status_code == 302
    assert total(world) == 10
    assert "Posted: $10.00." in text(browser)
    shown = text(owner)
    assert "$10.00" in shown and "payment 7" in shown and "paid in advance" in shown
    assert "Take back" not in shown and "change-credit" not in shown
    assert "10.00,USD" in owner.get("/portal/tenants/acme/credit.csv").getvalue().decode()
    assert "$10.00" in text(browser, "/portal/billing/")


def test_a_wrong_amount_is_marked_and_posts_nothing(signed_in: SignIn, world: World) -> None:
    browser = signed_in(world.operator)
    for wrong, problem in (
        ({"amount": "ten"}, "Enter an amount such as 25 or 0.50"),
        ({"amount": "-1"}, "Use an amount above 0"),
        ({"amount": "0.001"}, "An amount in USD has at most 2 decimals"),
        ({"kind": "promotion"}, "A promotion needs its last day."),
        ({"expires": "2030-06-30"}, "Only a promotion has a last day."),
        ({"invoice": "INV-000001"}, "Only a “return of an invoice&#x27;s payment” names an invoice."),
        ({"kind": "refund"}, "Say why: this kind needs a reason."),
        ({"kind": "refund", "reason": "all"}, "0.00 USD of prepaid credit are left"),
        ({"kind": "reversal"}, "Choose one of the list"),
    ):
        refused = browser.post(f"{FORM}change/", TEN | wrong)
        assert (refused.status_code, problem in refused.content.decode()) == (400, True), problem
        assert "payment 7" in refused.content.decode()
    assert not CreditRequest.objects.exists()


def test_a_promotion_lasts_to_the_end_of_its_last_day(signed_in: SignIn, world: World) -> None:
    year = timezone.now().year + 1
    signed_in(world.operator).post(f"{FORM}change/", TEN | {"kind": "promotion", "expires": f"{year}-06-30"})
    entry = CreditEntry.objects.get()
    assert entry.expires_at is not None
    assert entry.expires_at.isoformat() == f"{year}-07-01T00:00:00+00:00"


def test_an_entry_is_taken_back_once(signed_in: SignIn, world: World) -> None:
    browser = signed_in(world.operator)
    browser.post(f"{FORM}change/", TEN)
    entry = CreditEntry.objects.get()
    assert take_back(browser, entry) != take_back(browser, entry)
    assert "is taken back already" in text(browser)
    assert (total(world), CreditEntry.objects.count()) == (0, 2)


def test_a_rejected_request_is_not_called_posted_and_can_be_made_again(signed_in: SignIn, world: World) -> None:
    ada, eve = signed_in(world.operator), signed_in(User.objects.create(username="eve", is_staff=True))
    ada.post(f"{FORM}change/", TEN | {"amount": "5000"})
    eve.post(f"{FORM}{CreditRequest.objects.get().id}/decide/", {"action": "approve"})
    entry = CreditEntry.objects.get()
    key = take_back(ada, entry)
    eve.post(f"{FORM}{CreditRequest.objects.get(kind='reversal').id}/decide/", {"action": "reject"})
    text(ada)
    assert take_back(ada, entry, key) == key
    assert "was rejected before; nothing was posted" in text(ada)
    take_back(ada, entry)
    assert "waits until a second operator approves it" in text(ada)
    eve.post(f"{FORM}{CreditRequest.objects.get(kind='reversal', state='pending').id}/decide/", {"action": "approve"})
    assert total(world) == 0


def test_a_large_amount_is_decided_by_another_operator(signed_in: SignIn, world: World) -> None:
    browser = signed_in(world.operator)
    browser.post(f"{FORM}change/", TEN | {"amount": "5000"})
    asked = CreditRequest.objects.get()
    for address in (PAGE, "/portal/billing/"):
        assert "Another operator approves it." in text(browser, address)
    browser.post(f"{FORM}{asked.id}/decide/", {"action": "approve"})
    assert "a second person confirms it" in text(browser)
    assert total(world) == 0
    eve = signed_in(User.objects.create(username="eve", is_staff=True))
    assert "Approve" in text(eve, "/portal/billing/")
    eve.post(f"{FORM}{asked.id}/decide/", {"action": "approve"})
    assert total(world) == 5000
    eve.post(f"{FORM}{asked.id}/decide/", {"action": "reject"})
    assert "the request is posted already" in text(eve)


def test_a_stranger_and_the_tenant_itself_change_nothing(signed_in: SignIn, world: World) -> None:
    signed_in(world.operator).post(f"{FORM}change/", TEN)
    entry = CreditEntry.objects.get()
    for user in (world.globex.owner, world.acme.owner):
        browser = signed_in(user)
        assert browser.post(f"{FORM}change/", TEN | {"key": "mine"}).status_code == 404
        assert browser.post(f"{FORM}{entry.id}/reverse/", {"reason": "mine"}).status_code == 404
        assert browser.get("/portal/billing/").status_code == 404
    assert signed_in(world.globex.owner).get("/portal/tenants/acme/credit.csv").status_code == 404
    assert CreditEntry.objects.count() == 1

"""Returns of refunds and disputes: found by what they refer to, taken back once, and never two that count."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from billing.accounts import credits, returns
from billing.accounts.credits import NewCredit
from billing.errors import StripeRefused
from billing.invoices import steps
from billing.models import CreditEntry, CreditRequest, Invoice, StripeConnection, StripeEvent
from billing.stripe import followups
from billing.stripe.events import STRIPE
from billing.stripe.followups import FollowUp
from tenants.audit import Actor
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA
from tests.billing.stripe.conftest import push

pytestmark = pytest.mark.django_db

EVE = Actor(kind="user", name="eve")
CENT = 10**10


@pytest.fixture
def dispute(closed: Tenant, connection: StripeConnection) -> StripeEvent:
    """A dispute of all of a paid invoice."""
    done = push(closed)
    invoice = Invoice.objects.get()
    steps.pay(ADA, invoice, reference="Stripe", paid_on=steps.today(invoice))
    return StripeEvent.objects.create(
        connection=connection, event_id="evt_1", type="charge.dispute.created", object_id="du_1", amount=381,
        currency="USD", invoice_id=done.external_id, created_at=timezone.now(), processed_at=timezone.now(),
    )  # fmt: skip


def shown(event: StripeEvent) -> FollowUp:
    """Return what the page shows of it."""
    [found] = followups.listed(event.connection)
    return found


def post(event: StripeEvent) -> CreditRequest:
    """Press the page's button."""
    return followups.post_return(ADA, event.connection, event.id)


def by_hand(tenant: Tenant, key: str, **changes: Any) -> CreditRequest:
    """Post a return by `hearth credit return`."""
    given: dict[str, Any] = {"amount_pico": 100 * CENT, "reference": "du_1", "reason": "dispute lost"} | changes
    return credits.submit(ADA, tenant, key, NewCredit(kind="return", **given))[0]


def reverse(tenant: Tenant, asked: CreditRequest, key: str = "reversal") -> CreditRequest:
    """Take a return back by `hearth credit reverse`."""
    wanted = NewCredit(kind="reversal", reason="too early", refers_to=asked.entry.id)
    return credits.submit(ADA, tenant, key, wanted)[0]


def returned() -> int:
    return returns.returned_cents(Invoice.objects.get())


def test_a_return_that_was_posted_by_hand_after_a_rejection_is_taken_back_too(
    dispute: StripeEvent, closed: Tenant, settings: Any
) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 1
    credits.reject(EVE, closed, post(dispute).id)
    assert "hearth credit return, with --reference du_1" in shown(dispute).next
    settings.CREDIT_APPROVAL_ABOVE = 1000
    asked = by_hand(closed, "by hand", invoice=Invoice.objects.get().id)
    found = shown(dispute)
    assert (found.request, found.next, found.may_post, returned()) == (asked, "Nothing more.", False, 100)
    assert post(dispute) == asked
    assert followups.settle(STRIPE, dispute, "won") == "It is won at Stripe; its return was taken back."
    assert (shown(dispute).next, returned()) == ("Nothing more: the dispute was won.", 0)


def test_a_return_of_the_wrong_tenant_is_none_of_the_event(dispute: StripeEvent, closed: Tenant) -> None:
    globex = Tenant.objects.create(slug="globex", name="Globex")
    reverse(globex, by_hand(globex, "stripe du_1"))
    by_hand(globex, "stripe du_1 again")
    assert shown(dispute).may_post
    post(dispute)
    assert followups.settle(STRIPE, dispute, "won") == "It is won at Stripe; its return was taken back."
    assert returned() == 0
    assert CreditEntry.objects.filter(tenant_id=globex.id, kind="reversal").count() == 2  # of the first alone


def test_a_reversal_that_is_rejected_is_left_to_people(dispute: StripeEvent, closed: Tenant, settings: Any) -> None:
    asked = post(dispute)
    settings.CREDIT_APPROVAL_ABOVE = 1
    waits = "It is won at Stripe; a second person approves that its return is taken back."
    assert followups.settle(STRIPE, dispute, "won") == followups.settle(STRIPE, dispute, "won") == waits
    assert "a second person approves" in shown(dispute).next
    credits.reject(EVE, closed, credits.pending(closed)[0].id)
    remedy = f"hearth credit reverse acme {asked.entry.id}."
    assert followups.settle(STRIPE, dispute, "won").endswith(f"was rejected. If you have the money: {remedy}")
    assert shown(dispute).next == f"You have the money, and its return still counts: {remedy}"
    credits.approve(EVE, closed, reverse(closed, asked).id)
    assert shown(dispute).next == "Nothing more: the dispute was won."


def test_a_reversal_of_a_person_that_waits_is_waited_for(dispute: StripeEvent, closed: Tenant, settings: Any) -> None:
    asked = post(dispute)
    settings.CREDIT_APPROVAL_ABOVE = 1
    reverse(closed, asked)
    assert "a second person approves" in followups.settle(STRIPE, dispute, "won")
    dispute.refresh_from_db()
    assert (dispute.object_status, len(credits.pending(closed))) == ("won", 1)


def test_a_return_that_was_taken_back_too_early_is_posted_again_by_hand(dispute: StripeEvent, closed: Tenant) -> None:
    reverse(closed, post(dispute))
    followups.settle(STRIPE, dispute, "lost")
    found = shown(dispute)
    assert (found.may_post, found.next.partition(".")[0]) == (False, "Its return was taken back")
    with pytest.raises(StripeRefused, match=r"its return was taken back.*--reference du_1"):
        post(dispute)
    by_hand(closed, "again", invoice=Invoice.objects.get().id)
    assert (shown(dispute).next, returned()) == ("Nothing more.", 100)


def test_what_was_read_before_the_money_came_back_does_not_replace_it(dispute: StripeEvent) -> None:
    followups.settle(STRIPE, dispute, "failed")
    assert followups.settle(STRIPE, dispute, "pending") == "It is failed at Stripe."
    assert shown(dispute).status == "failed"

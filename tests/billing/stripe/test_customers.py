"""Payment methods: saved on Stripe's page by the tenant's people, charged by Stripe, and no more than a text here."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.accounts import account
from billing.errors import StripeRefused, StripeUnavailable
from billing.invoices import issuers
from billing.models import Invoice, PaymentFailure, StripeConnection, StripeCustomer, StripeEvent
from billing.stripe import customers, events, exclusive
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA
from tests.billing.invoices.test_issuers import PARIS
from tests.billing.stripe.conftest import push
from tests.billing.stripe.test_events import deliver
from tests.stripe_stand_in.books import Object
from tests.stripe_stand_in.server import StandIn

pytestmark = pytest.mark.django_db

BACK = "https://portal.example/portal/tenants/acme/billing/"


def begin(stripe: StandIn, tenant: Tenant) -> Object:
    """Return the session that a member of the tenant begins."""
    url = customers.begin_saving(ADA, tenant, BACK)
    session = stripe.books.of_kind("checkout.session")[0]
    assert session["url"] == url and session["success_url"] == BACK
    return session


def text(tenant: Tenant) -> str:
    found = customers.with_method(tenant, customers.account_to_save_in())
    return found.payment_method if found else ""


def charged(tenant: Tenant) -> None:
    account.change(ADA, tenant, charge_automatically=True)


def test_a_saved_method_is_charged_and_the_invoice_is_paid(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    charged(closed)
    stripe.books.save_method(begin(stripe, closed)["id"])
    deliver(stripe, connection)
    assert text(closed) == "visa, ends in 4242, until 07/2031"
    done = push(closed)
    found = stripe.books.get("invoice", done.external_id)
    assert (found["collection_method"], found["auto_advance"], found["due_date"]) == (
        "charge_automatically",
        True,
        None,
    )
    assert not [each for each in stripe.requests if each.endswith("/send")]
    mirror = Invoice.objects.get()
    assert (mirror.state, mirror.due_on - mirror.issued_on) == ("sent", timedelta(days=14))
    stripe.books.collect()
    deliver(stripe, connection)
    assert Invoice.objects.get().state == "paid"
    assert len(stripe.books.of_kind("customer")) == 1


def test_a_charge_that_fails_is_a_failed_payment(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    charged(closed)
    stripe.books.save_method(begin(stripe, closed)["id"], declines=True)
    deliver(stripe, connection)
    push(closed)
    stripe.books.collect()
    stripe.books.collect()
    deliver(stripe, connection)
    assert PaymentFailure.objects.count() == 2
    assert Invoice.objects.get().state == "sent"


@pytest.mark.parametrize("says_so", [True, False])
def test_without_a_method_or_the_accounts_word_the_customer_pays_on_stripes_page(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, says_so: bool
) -> None:
    if says_so:
        charged(closed)
    else:
        stripe.books.save_method(begin(stripe, closed)["id"])
        deliver(stripe, connection)
    found = stripe.books.get("invoice", push(closed).external_id)
    assert (found["collection_method"], found["auto_advance"]) == ("send_invoice", False)


def test_the_session_that_began_last_counts_in_any_order(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    first = begin(stripe, closed)
    second = begin(stripe, closed)
    second["created"] = first["created"] + 60
    stripe.books.save_method(second["id"], "0002")
    deliver(stripe, connection)
    late = stripe.books.save_method(first["id"], "0001")
    deliver(stripe, connection)
    assert (text(closed), late["customer"]) == ("visa, ends in 0002, until 07/2031", None)


def test_another_method_replaces_the_first_at_stripe_too(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    first = stripe.books.save_method(begin(stripe, closed)["id"], "0001")
    deliver(stripe, connection)
    second = stripe.books.save_method(begin(stripe, closed)["id"], "0002")
    deliver(stripe, connection)
    deliver(stripe, connection)  # that the first one is detached
    customer = stripe.books.of_kind("customer")[0]
    assert (text(closed), first["customer"]) == ("visa, ends in 0002, until 07/2031", None)
    assert second["customer"] == customer["id"]
    assert customer["invoice_settings"] == {"default_payment_method": second["id"]}


def test_one_that_was_saved_after_another_was_detached_counts_if_stripe_says_both_late(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    first = stripe.books.save_method(begin(stripe, closed)["id"], "0001")
    deliver(stripe, connection)
    stripe.books.detach(first["id"])
    stripe.books.save_method(begin(stripe, closed)["id"], "0002")
    deliver(stripe, connection)
    assert text(closed) == "visa, ends in 0002, until 07/2031"


def test_a_bank_account_is_saved_once_it_is_verified(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    session = begin(stripe, closed)
    stripe.books.save_bank_account(session["id"])
    deliver(stripe, connection)
    assert text(closed) == ""
    stripe.books.verify(session["id"])
    deliver(stripe, connection)
    assert text(closed) == "us bank account, ends in 6789"
    stripe.books.emit("setup_intent.succeeded", stripe.books.make("setup_intent", status="succeeded", customer=None))
    deliver(stripe, connection)
    newest = StripeEvent.objects.order_by("id").last()
    assert newest is not None and newest.outcome == "It saved no payment method of a tenant."


def test_what_was_saved_in_the_account_of_another_issuer_is_not_shown_and_is_removed(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    charged(closed)
    method = stripe.books.save_method(begin(stripe, closed)["id"])
    deliver(stripe, connection)
    issuers.set_issuer(ADA, "paris", PARIS, make_default=True)
    assert (text(closed), customers.is_charged(closed, connection)) == ("", True)
    assert customers.remove(ADA, closed) is True
    assert (method["customer"], customers.is_charged(closed, connection)) == (None, False)


def test_one_process_at_a_time_saves(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(stripe, closed)

    def is_held(*_: object) -> None:
        raise StripeUnavailable("another process works on this tenant's invoices")

    with monkeypatch.context() as patch:
        patch.setattr(exclusive, "of_tenant", is_held)
        stripe.books.save_method(session["id"])
        deliver(stripe, connection)
        assert text(closed) == ""
    events.process(timezone.now() + timedelta(hours=1))
    assert text(closed) == "visa, ends in 4242, until 07/2031"


def test_a_method_is_removed_here_and_there(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    method = stripe.books.save_method(begin(stripe, closed)["id"])
    deliver(stripe, connection)
    assert customers.remove(ADA, closed) is True
    assert (text(closed), method["customer"], customers.remove(ADA, closed)) == ("", None, False)
    deliver(stripe, connection)
    again = begin(stripe, closed)
    again["created"] += 60
    method = stripe.books.save_method(again["id"], "0003")
    deliver(stripe, connection)
    assert text(closed) == "visa, ends in 0003, until 07/2031"
    stripe.books.detach(method["id"])  # by somebody at Stripe
    deliver(stripe, connection)
    assert text(closed) == ""
    entries = AuditEntry.objects.filter(action__startswith="payment_method.").order_by("id")
    verbs = [each.action.partition(".")[2] for each in entries]
    assert verbs == ["begun", "saved", "removed", "begun", "saved", "removed"]
    assert "0003" not in "".join(str(each.after) for each in entries)


def test_a_session_of_nobodys_saves_nothing(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    stranger = stripe.books.customer({})
    given = {"mode": "setup", "currency": "usd", "customer": stranger["id"], "success_url": BACK}
    stripe.books.save_method(stripe.books.session(given)["id"])
    deliver(stripe, connection)
    assert not StripeCustomer.objects.exclude(payment_method="").exists()


def test_a_tenant_that_hearth_invoices_saves_none(stripe: StandIn, closed: Tenant) -> None:
    account.change(ADA, closed, issuer="hearth")
    with pytest.raises(StripeRefused, match="Stripe does not write its invoices"):
        customers.begin_saving(ADA, closed, BACK)
    assert stripe.books.of_kind("customer") == []

"""Stripe counts some currencies otherwise than ISO 4217 does: its amounts, our mirror and our ledger agree."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.errors import StripeRefused
from billing.models import Issuer, StripeConnection
from billing.months import closing
from billing.pricing.prices import ensure_price_book
from billing.stripe import comparison, reading, units
from billing.stripe.api import open_api
from reconciliation import invoices as reconciliation
from reconciliation.models import BookGap
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, month
from tests.billing.invoices.test_currencies import tenant_in
from tests.billing.invoices.test_whole_month import receivable_pico
from tests.billing.stripe.conftest import push
from tests.stripe_stand_in.server import StandIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def closed(issuer: Issuer, connection: StripeConnection, request: pytest.FixtureRequest) -> Tenant:
    """A tenant in the currency of the test, whose closed month Stripe invoices."""
    book = ensure_price_book()
    book.currency = request.param
    book.save()
    tenant = tenant_in(request.param)
    account.change(ADA, tenant, issuer="stripe")
    closing.close(ADA, month(tenant))
    return tenant


@pytest.mark.parametrize(
    ("closed", "items", "total", "rounding"),
    [
        pytest.param("JPY", [150, 8, 0, 30], 188, 0, id="JPY"),
        # in steps of ten: 0.140 and the tax on 157.640, 29.9516
        pytest.param("BHD", [150_000, 7_500, 140, 29_950], 187_590, 0, id="BHD"),
        pytest.param("ISK", [15_000, 800, 0, 3_000], 188, 0, id="ISK"),
    ],
    indirect=["closed"],
)
def test_an_invoice_of_stripe_has_its_amounts_and_our_ledger_has_the_same(
    stripe: StandIn, closed: Tenant, items: list[int], total: int, rounding: int
) -> None:
    done = push(closed)
    [theirs] = stripe.books.of_kind("invoice")
    found = [each["amount"] for each in stripe.books.lines(theirs)]
    assert sorted(found) == sorted(items)
    mirror = done.mirror
    assert mirror is not None and mirror.total_cents == total == units.whole(theirs["total"], closed.currency)
    assert receivable_pico(closed) == total * 10 ** (12 - {"JPY": 0, "ISK": 0, "BHD": 3}[closed.currency])
    stripe.books.pay(done.external_id)
    api, found_now = open_api(done.connection), stripe.books.get("invoice", done.external_id)
    reading.apply(ADA, done.id, found_now, reading.payments_of(api, found_now))
    mirror.refresh_from_db()
    assert (mirror.state, receivable_pico(closed)) == ("paid", 0)
    reconciliation.compare(timezone.now(), since=datetime(2020, 1, 1, tzinfo=UTC))
    assert not BookGap.objects.exists()
    assert not comparison.run(done.connection).findings.exists()


@pytest.mark.parametrize(
    ("currency", "cents", "theirs"),
    [("USD", 1234, 1234), ("JPY", 500, 500), ("BHD", 5120, 5120), ("ISK", 5, 500), ("UGX", 5, 500), ("MGA", 500, 5)],
)
def test_an_amount_goes_to_stripe_and_back(currency: str, cents: int, theirs: int) -> None:
    assert units.theirs(cents, currency) == theirs
    assert units.whole(theirs, currency) == cents


def test_what_stripe_does_not_take_is_refused() -> None:
    with pytest.raises(StripeRefused, match=r"5\.124 BHD: Stripe takes BHD in steps of 0\.010 only"):
        units.theirs(5124, "BHD")
    assert [units.rounded(each, "BHD") for each in (5124, 5125, 5135, -5126)] == [5120, 5120, 5140, -5130]
    with pytest.raises(StripeRefused, match="ISK has no such amount"):
        units.whole(550, "isk")
    with pytest.raises(StripeRefused, match="Stripe does not take LYD"):
        units.check_currency("2026-03", "LYD")
    units.check_currency("2026-03", "KWD")


@pytest.mark.parametrize("closed", ["BHD"], indirect=True)
def test_credit_that_stripe_cannot_take_is_refused_before_anything_is_there(stripe: StandIn, closed: Tenant) -> None:
    from billing.months import reopening
    from tests.billing.invoices.conftest import EVE

    reopening.request(ADA, month(closed), "credit came later")
    reopening.confirm(EVE, month(closed))
    credits.submit(ADA, closed, "payment-1", NewCredit(kind="top_up", amount_pico=1_234 * 10**9))
    closing.close(ADA, month(closed))
    with pytest.raises(StripeRefused, match=r"1\.234 BHD: Stripe takes BHD in steps"):
        push(closed)
    assert not stripe.books.of_kind("invoice")

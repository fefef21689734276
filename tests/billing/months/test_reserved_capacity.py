"""Reserved capacity in the months of a tenant: estimated while one is open, posted once it is closed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError
from django.db.models import Sum

from billing.errors import NotClosed
from billing.models import LedgerEntry, LedgerTransaction
from billing.months import closing, previews, reopening
from billing.plans.terms import Terms
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month
from reconciliation import closed_months
from reconciliation.models import BookGap
from reserved_capacity.models import CapacityReservation, ReservedHour
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
BEGIN, END = datetime(2026, 3, 30, tzinfo=UTC), datetime(2026, 4, 1, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
DOLLAR = 10**12


@pytest.fixture
def acme() -> Tenant:
    """A tenant with ten tokens in March, and two slots from the 30th to the second hour of April."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    price_from(BEGIN - timedelta(days=40), DEMO_RATES)
    store(row_at(BEGIN, TenantId(tenant.id), tokens=(10, 0, 0)))
    CapacityReservation.objects.create(
        tenant=tenant,
        deployment="chat",
        model_names=["demo"],
        slots=2,
        starts_at=BEGIN,
        ends_at=END,
        currency="USD",
        slot_hour_pico=DOLLAR,
        tokens_per_slot_hour=1,
    )
    return tenant


def measure(hours: int, *, first: int = 0, missing_seconds: int = 0) -> None:
    row = CapacityReservation.objects.get()
    ReservedHour.objects.bulk_create(
        ReservedHour(
            reservation=row,
            tenant_id=row.tenant_id,
            starts_at=BEGIN + HOUR * number,
            slots=2,
            available_seconds=7200 - missing_seconds,
        )
        for number in range(first, first + hours)
    )


def read(tenant: Tenant, number: int = 3) -> statements.Statement:
    return statements.statement(TenantId(tenant.id), 2026, number)


def owed() -> int:
    return int(LedgerEntry.objects.filter(account__kind="receivable").aggregate(total=Sum("amount_pico"))["total"])


def test_a_month_has_the_hours_that_begin_in_it_and_posts_them_once_closed(acme: Tenant) -> None:
    usage = 10 * 150_000
    assert read(acme).terms == ()
    measure(1, missing_seconds=1800)
    estimate = read(acme)
    assert [(each.kind, each.amount_pico) for each in estimate.terms] == [
        ("reserved", 2 * DOLLAR),
        ("not_available", -DOLLAR // 2),
        ("reserved_tokens", -2 * 150_000),
    ]
    assert estimate.equals_ledger and estimate.plan is None and owed() == usage
    with pytest.raises(NotClosed, match=r"from 2026-03-30T01:00:00\+00:00 on is not measured yet"):
        closing.close(ADA, Month(tenant=acme, year=2026, month=3))
    measure(49, first=1)
    month = Month(tenant=acme, year=2026, month=3)
    closed, _ = closing.close(ADA, month)
    due = 96 * DOLLAR - DOLLAR // 2  # all ten tokens are included
    assert closed.amount_pico == due == owed() == read(acme).amount_pico and read(acme).equals_ledger
    postings = LedgerTransaction.objects.filter(kind="reserved").order_by("source")
    assert [each.source for each in postings] == [f"reserved:{closed.id}:{number}" for number in range(3)]
    reopening.request(ADA, month, "why")
    reopening.confirm(EVE, month)
    assert owed() == usage
    closing.close(ADA, month)
    closing.close(ADA, Month(tenant=acme, year=2026, month=4))
    assert owed() == due + 4 * DOLLAR
    assert (closed_months.compare(datetime.now(UTC), since=BEGIN), BookGap.objects.count()) == (2, 0)
    assert list(statements.csv_rows(read(acme, 4)))[1][1] == "reserved"


def test_a_preview_of_a_plan_has_it_too(acme: Tenant) -> None:
    measure(50)
    now = datetime(2026, 4, 9, tzinfo=UTC)
    [seen] = previews.of_terms(Terms(minimum="100.00"), "USD", [acme], now)
    assert seen.was is not None and seen.would_be is not None
    assert (seen.was.amount_pico, seen.change_pico) == (96 * DOLLAR, 4 * DOLLAR)


def test_a_project_has_no_part_of_it_and_currencies_do_not_mix(acme: Tenant) -> None:
    measure(50)
    with pytest.raises(IntegrityError, match="it is in EUR, and the account of the tenant is in USD"):
        CapacityReservation.objects.update(currency="EUR")

"""Reopening a closed month: a reason, a second person, and lines that are computed again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from billing.errors import NotReopened
from billing.ledger import partitions
from billing.ledger.partitions import Month as UtcMonth
from billing.models import BillingMonth
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.retired import retire
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
ONE = 30 * 150_000 + 10 * 15_000 + 7 * 600_000


@pytest.fixture
def march() -> Month:
    """March of a tenant with one request, closed by Ada."""
    acme = Tenant.objects.create(slug="acme", name="Acme")
    price_from(MIDDLE - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id)))
    month = Month(tenant=acme, year=2026, month=3)
    closing.close(ADA, month)
    return month


def test_a_second_person_reopens_and_the_next_closing_has_what_came_since(march: Month) -> None:
    reopening.request(ADA, march, " a host was lost ")
    assert statements.statement(TenantId(march.tenant.id), 2026, 3).revision == 1  # still closed
    with pytest.raises(NotReopened, match="ada requested it; a second person confirms it"):
        reopening.confirm(ADA, march)
    opened = reopening.confirm(EVE, march)
    assert (opened.state, opened.reopen_reason, opened.reopen_requested_by, opened.reopened_by) == (
        "reopened",
        "a host was lost",
        "ada",
        "eve",
    )
    store(row_at(MIDDLE, TenantId(march.tenant.id)))
    now_open = statements.statement(TenantId(march.tenant.id), 2026, 3)
    assert (now_open.revision, now_open.amount_pico, now_open.equals_ledger) == (None, 2 * ONE, True)
    again, new = closing.close(EVE, march)
    assert (new, again.revision, int(again.amount_pico)) == (True, 2, 2 * ONE)
    assert [each.revision for each in BillingMonth.objects.order_by("revision")] == [1, 2]
    entries = AuditEntry.objects.order_by("id").values_list("actor", "action")
    assert list(entries) == [
        ("ada", "month.closed"),
        ("ada", "month.reopening_requested"),
        ("eve", "month.reopened"),
        ("eve", "month.closed"),
    ]


def test_a_request_needs_a_reason_and_is_made_once(march: Month) -> None:
    for reason in ("", "  ", "x" * 501):
        with pytest.raises(NotReopened, match="give a reason of 1 to 500 characters"):
            reopening.request(ADA, march, reason)
    with pytest.raises(NotReopened, match="nobody has requested it"):
        reopening.confirm(EVE, march)
    reopening.request(ADA, march, "why")
    with pytest.raises(NotReopened, match="ada has already requested it"):
        reopening.request(EVE, march, "why")
    april = Month(tenant=march.tenant, year=2026, month=4)
    with pytest.raises(NotReopened, match="it is not closed"):
        reopening.request(ADA, april, "why")


def test_only_the_last_closed_month_is_reopened(march: Month) -> None:
    closing.close(ADA, Month(tenant=march.tenant, year=2026, month=4))
    with pytest.raises(NotReopened, match="2026-04 is closed too and comes first"):
        reopening.request(ADA, march, "why")


def test_a_month_whose_requests_are_gone_stays_closed(march: Month) -> None:
    partitions.ensure(MIDDLE)
    retire(UtcMonth(2026, 3))
    with pytest.raises(NotReopened, match="its requests were deleted"):
        reopening.request(ADA, march, "why")


def test_the_database_itself_wants_a_second_person(march: Month) -> None:
    reopening.request(ADA, march, "why")
    with pytest.raises(IntegrityError), transaction.atomic():
        BillingMonth.objects.update(reopened_by="ada", reopened_at=MIDDLE)


def test_two_commands_of_one_shell_account_are_one_person(march: Month) -> None:
    reopening.request(audit.shell("hearth month reopen"), march, "why")
    with pytest.raises(NotReopened, match="a second person confirms it"):
        reopening.confirm(audit.shell("hearth month confirm-reopening"), march)

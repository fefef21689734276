"""A closed month: when it closes, what it freezes, and what becomes of usage that arrives later."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import Error, connection, connections, transaction
from django.utils import timezone

from billing.drain import batch
from billing.errors import NotClosed
from billing.models import BillingMonth, LatePosting, LedgerEntry, MonthLine, UsageRecord, UsageRollup, WalOffset
from billing.months import closing, overview
from billing.pricing.classes import LineClass
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Line, Month
from tenants.audit import Actor
from tenants.database import rls
from tenants.ids import TenantId, new_id
from tenants.models import AuditEntry, Project, Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
#: Of 30 uncached and 10 cached prompt tokens and 7 completion tokens, at the demo's prices and at twice those.
ONE = 30 * 150_000 + 10 * 15_000 + 7 * 600_000
DOUBLE = replace(DEMO_RATES, prompt_pico=300_000, cached_prompt_pico=30_000, completion_pico=1_200_000)


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def month(tenant: Tenant, number: int) -> Month:
    return Month(tenant=tenant, year=2026, month=number)


def close(tenant: Tenant, number: int) -> BillingMonth:
    closed, new = closing.close(ADA, month(tenant, number))
    assert new
    return closed


def as_app() -> None:
    """Go on as the role that runs Hearth, which owns no table."""
    rls.grant("hearth_app")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")


def line(token_class: LineClass, quantity: int, price: int, adjusts: str | None = None) -> Line:
    return Line(
        model_name="demo",
        token_class=token_class,
        quantity=quantity,
        unit_price_pico=price,
        currency="USD",
        adjusts_month=adjusts,
    )


def test_a_month_with_a_price_change_freezes_each_price_and_equals_the_ledger(acme: Tenant) -> None:
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    price_from(MIDDLE, DOUBLE)
    instant, tenant_id = timedelta(milliseconds=1), TenantId(acme.id)
    store(
        row_at(MIDDLE - instant, tenant_id),
        row_at(MIDDLE, tenant_id),
        row_at(MIDDLE, tenant_id, cache_result="hit", tokens=(0, 0, 0), avoided=(5, 0, 3)),
        row_at(MIDDLE, tenant_id, state="engine_error", tokens=(9, 0, 0)),
    )
    before = statements.statement(tenant_id, 2026, 3)
    as_app()
    closed = close(acme, 3)
    assert closed.amount_pico == ONE + 2 * ONE
    frozen = statements.statement(tenant_id, 2026, 3)
    assert frozen == replace(before, closed_at=closed.closed_at, revision=1)
    assert frozen.lines == (
        line("prompt", 30, 150_000),
        line("cached_prompt", 10, 15_000),
        line("completion", 7, 600_000),
        line("prediction_hit", 1, 0),
        line("prompt", 30, 300_000),
        line("cached_prompt", 10, 30_000),
        line("completion", 7, 1_200_000),
    )
    assert frozen.equals_ledger and (frozen.requests, frozen.free_requests) == (4, 1)
    entry = AuditEntry.objects.get(action="month.closed")
    assert (entry.actor, entry.object_id, entry.after["amount_pico"]) == ("ada", "2026-03", 3 * ONE)  # type: ignore[index]


@pytest.mark.parametrize(
    ("zone", "start", "end"),
    [
        # New York changes to summer time in March, so that its month is an hour shorter.
        ("America/New_York", datetime(2026, 3, 1, 5, 0, tzinfo=UTC), datetime(2026, 4, 1, 4, 0, tzinfo=UTC)),
        ("Asia/Kathmandu", datetime(2026, 2, 28, 18, 15, tzinfo=UTC), datetime(2026, 3, 31, 18, 15, tzinfo=UTC)),
    ],
)
def test_a_month_is_that_of_the_tenants_zone(acme: Tenant, zone: str, start: datetime, end: datetime) -> None:
    acme.billing_timezone = zone
    acme.save()
    price_from(MARCH - timedelta(days=40), DEMO_RATES)
    instant = timedelta(milliseconds=1)
    store(*[row_at(moment, TenantId(acme.id)) for moment in (start - instant, start, end - instant, end)])
    closed = [close(acme, number) for number in (2, 3, 4)]
    assert [each.amount_pico for each in closed] == [ONE, 2 * ONE, ONE]
    assert (closed[1].starts_at, closed[1].ends_at, closed[1].timezone) == (start, end, zone)


def test_a_tenant_without_usage_closes_with_nothing_due(acme: Tenant) -> None:
    closed = close(acme, 3)
    found = statements.statement(TenantId(acme.id), 2026, 3)
    assert (int(closed.amount_pico), found.lines, found.requests, found.equals_ledger) == (0, (), 0, True)
    assert found.currency == closed.currency == "USD"


def test_late_usage_is_an_adjustment_of_the_next_month(acme: Tenant) -> None:
    tenant_id = TenantId(acme.id)
    project = Project.objects.create(tenant=acme, slug="hr", name="HR")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, tenant_id), row_at(MIDDLE + timedelta(days=31), tenant_id))
    close(acme, 3)
    march = statements.statement(tenant_id, 2026, 3)
    as_app()
    store(row_at(MIDDLE, tenant_id, tokens=(2, 0, 1)))
    store(row_at(MIDDLE + timedelta(days=1), tenant_id, model_name="unpriced", tokens=(1, 0, 0)))
    assert statements.statement(tenant_id, 2026, 3) == march and march.equals_ledger
    assert [(each.month, each.billed_month) for each in LatePosting.objects.all()] == [("2026-03", "2026-04")]
    april = statements.statement(tenant_id, 2026, 4)
    assert april.lines == (
        line("prompt", 30, 150_000),
        line("cached_prompt", 10, 15_000),
        line("completion", 7, 600_000),
        line("prompt", 2, 150_000, "2026-03"),
        line("completion", 1, 600_000, "2026-03"),
    )
    assert april.equals_ledger and april.amount_pico == ONE + 900_000
    assert [row[8] for row in statements.csv_rows(april)][4:6] == ["2026-03", "2026-03"]
    close(acme, 4)
    frozen = statements.statement(tenant_id, 2026, 4)
    assert (frozen.lines, frozen.requests) == (april.lines, 2)
    # A price that arrives later than the closings posts the last row, which May then bills.
    price_from(MARCH - timedelta(days=9), DEMO_RATES, "unpriced")
    assert batch.rate_unrated() == 1
    may = statements.statement(tenant_id, 2026, 5)
    assert [(each.model_name, each.adjusts_month, each.amount_pico) for each in may.lines] == [
        ("unpriced", "2026-03", 150_000)
    ]
    assert statements.statement(tenant_id, 2026, 5, project).lines == ()
    debits = LedgerEntry.objects.filter(account__kind="receivable").values_list("amount_pico", flat=True)
    close(acme, 5)
    assert sum(BillingMonth.objects.values_list("amount_pico", flat=True)) == sum(debits) == 2 * ONE + 1_050_000


def test_a_month_stays_open_until_its_grace_is_over(acme: Tenant) -> None:
    end = datetime(2026, 4, 1, tzinfo=UTC)
    for now, reason in (
        (
            end - timedelta(seconds=1),
            "it may be closed from April 3, 2026, 00:00 UTC on. Records may arrive up to 48 hours late.",
        ),
        (end + timedelta(hours=47), "it may be closed from April 3, 2026, 00:00 UTC on"),
    ):
        with pytest.raises(NotClosed, match=reason):
            closing.close(ADA, month(acme, 3), now=now)
    assert not BillingMonth.objects.exists() and not AuditEntry.objects.exists()
    assert closing.close(ADA, month(acme, 3), now=end + timedelta(hours=48))[1]


def test_a_month_stays_open_while_a_drain_may_have_records_of_it(acme: Tenant) -> None:
    def offset(node: str, caught_up_at: datetime | None) -> None:
        WalOffset.objects.create(writer_id=new_id(), node=node, segment=1, offset=9, caught_up_at=caught_up_at)

    offset("n1", timezone.now())
    offset("n2", MIDDLE)
    offset("n3", None)
    with pytest.raises(NotClosed, match="the drain of n2, n3 has not stored"):
        closing.close(ADA, month(acme, 3))
    assert closing.close(ADA, month(acme, 3), without_nodes=["n2", "n3"])[1]
    assert AuditEntry.objects.get().after["without_nodes"] == ["n2", "n3"]  # type: ignore[index]


def test_a_month_stays_open_while_a_price_is_missing_or_an_earlier_month_is_open(acme: Tenant) -> None:
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id)), row_at(MIDDLE, TenantId(acme.id), model_name="unpriced"))
    with pytest.raises(NotClosed, match="1 of its requests have no price"):
        close(acme, 3)
    with pytest.raises(NotClosed, match=r"2026-03 has charges and is open\. Close 2026-03 first"):
        close(acme, 5)
    assert not BillingMonth.objects.exists()


def test_rollups_never_decide_and_lines_that_differ_from_the_ledger_close_nothing(acme: Tenant) -> None:
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id)))
    UsageRollup.objects.update(amount_pico=7 * ONE)
    UsageRecord.objects.update(prompt_tokens=31)  # the test's role owns the table
    with pytest.raises(NotClosed, match=f"its lines sum to {ONE + 150_000} pico-units, the ledger has {ONE}"):
        close(acme, 3)
    UsageRecord.objects.update(prompt_tokens=30)
    assert close(acme, 3).amount_pico == ONE


def test_no_process_changes_what_is_closed(acme: Tenant) -> None:
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id)))
    close(acme, 3)
    store(row_at(MIDDLE, TenantId(acme.id)))
    as_app()
    for statement in (
        "UPDATE billing_billingmonth SET amount_pico = 0",
        "UPDATE billing_billingmonth SET reopened_at = now(), reopened_by = 'eve'",
        "DELETE FROM billing_billingmonth",
        "UPDATE billing_monthline SET quantity = 1",
        "DELETE FROM billing_monthline",
        "UPDATE billing_lateposting SET billed_month = '2026-09'",
        "DELETE FROM billing_lateposting",
    ):
        with pytest.raises(Error), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_another_tenant_sees_neither_the_month_nor_its_lines(acme: Tenant) -> None:
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(acme.id)))
    close(acme, 3)
    store(row_at(MIDDLE, TenantId(acme.id)))
    tables = (BillingMonth, MonthLine, LatePosting)
    with rls.as_tenant(TenantId(acme.id)):
        assert [table.objects.count() for table in tables] == [1, 3, 1]
        assert statements.statement(TenantId(acme.id), 2026, 3).revision == 1
    with rls.as_tenant(TenantId(stranger.id)):
        assert [table.objects.count() for table in tables] == [0, 0, 0]
        assert statements.statement(TenantId(stranger.id), 2026, 3).revision is None


@pytest.mark.django_db(transaction=True)
def test_two_operators_who_close_at_once_make_one_closing(acme: Tenant) -> None:
    start, new = threading.Barrier(2), []

    def run(actor: Actor) -> None:
        try:
            start.wait(timeout=60)
            new.append(closing.close(actor, month(acme, 3))[1])
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(actor,)) for actor in (ADA, EVE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(new) == [False, True]
    assert BillingMonth.objects.count() == AuditEntry.objects.filter(action="month.closed").count() == 1


def test_the_overview_has_every_tenant_that_is_billed(acme: Tenant) -> None:
    for slug in ("globex", "platform"):
        Tenant.objects.create(slug=slug, name=slug)
    Tenant.objects.update(created_at=MARCH)
    close(acme, 3)
    assert [(each.month.tenant.slug, each.state) for each in overview.read(2026, 3)] == [
        ("acme", "closed"),
        ("globex", "open"),
    ]
    assert overview.read(2026, 2) == []

"""The statement of an open month says the same whether its days' charges are summed or read from requests."""

from __future__ import annotations

from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from billing.drain import batch, day_folding
from billing.ledger import daily_charges, partitions
from billing.ledger.daily_rollups import DAY
from billing.ledger.usage_rows import UsageRow
from billing.models import DailyCharge, FoldedDay, UsageExport, UsageRecord
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month
from tenants import registry
from tenants.audit import SYSTEM
from tenants.database.rls import as_tenant
from tenants.ids import TenantId, new_id
from tenants.models import Project, Tenant
from tests.billing.ledger.test_usage_only_grows import as_process
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = 5
ROWS = 360
NOW = START + DAYS * DAY + timedelta(hours=9)


@pytest.fixture
def month() -> Month:
    """March of a tenant whose days begin at half past six in the evening in UTC, with requests of every kind."""
    tenant = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    Tenant.objects.update(billing_timezone="Asia/Kolkata", created_at=START - 9 * DAY)
    project = registry.create_project(SYSTEM, tenant, slug="second", name="Second")
    partitions.ensure(START)
    price_from(START - DAY, DEMO_RATES, "first")
    price_from(START + 2 * DAY, replaced(DEMO_RATES, prompt_pico=7), "first")
    price_from(START - DAY, replaced(DEMO_RATES, request_pico=11, low_priority_bp=5_000), "second")
    made = [_row(number, tenant, project) for number in range(ROWS)]
    other = registry.create_tenant(SYSTEM, slug="other", name="Other")
    with as_process():
        store(*made, *(_row(number, other, project) for number in range(10)))
    return Month(tenant=Tenant.objects.get(id=tenant.id), year=2026, month=3)


def _row(number: int, tenant: Tenant, project: Project) -> UsageRow:
    """Return a request; the time to its first token grows with its prompt."""
    moment = START - timedelta(hours=7) + (NOW - START) / ROWS * number
    ran: list[dict[str, Any]] = [
        {"tokens": (30 + number, 10, 7)},
        {"cache_result": "hit", "tokens": (0, 0, 0), "avoided": (20, 5, number)},
        {"cache_result": "coalesced", "tokens": (0, 0, 0), "avoided": (20, 0, 3)},
        {"state": "engine_error", "tokens": (0, 0, 0)},
        {"state": "client_gone"},
    ]
    row = row_at(moment, TenantId(tenant.id), model_name=("first", "second", "unrated")[number % 3], **ran[number % 5])
    return replace(
        row,
        project_id=project.id if number % 2 else row.project_id,
        priority="low" if number % 7 == 0 else "standard",
        stream=True,
        ttft_ms=100.25 + number * 1.5,
        cache_write_tokens=min(row.prompt_tokens, 2),
        reasoning_tokens=min(row.completion_tokens, 1),
    )


def said(month: Month) -> list[Any]:
    """Return what statements say of a month."""
    project = Project.objects.get(slug="second")
    return [
        statements.computed(month),
        statements.computed(month, is_detailed=True, by_project=True),
        statements.computed(month, project),
        statements.computed(month, only_posted=True),
    ]


def fold() -> None:
    """Fold as the background role does."""
    with as_process():
        day_folding.fold(NOW)


def test_a_statement_says_the_same_of_summed_days(month: Month) -> None:
    before = said(month)
    assert before[0].equals_ledger and before[0].unrated_requests and before[0].savings.prefix_tokens
    assert {each.prefill_ns for each in before[0].model_savings or ()} == {1_500_000}
    fold()
    assert said(month) == before
    DailyCharge.objects.all().delete()
    assert [each != was for each, was in zip(said(month), before, strict=True)] == [True, True, True, False]


def test_a_late_request_and_a_late_price_count_at_once_and_after_the_next_fold(month: Month) -> None:
    fold()
    before = statements.computed(month)
    project = Project.objects.get(slug="second")
    with as_process():
        store(_row(62, month.tenant, project))
        late = said(month)
        assert late[0].requests == before.requests + 1 and late[0].equals_ledger
    fold()
    assert said(month) == late
    price_from(START - DAY, DEMO_RATES, "unrated")
    with as_process():
        assert batch.rate_unrated() == UsageRecord.objects.filter(model_name="unrated").count()
        priced = said(month)
    assert priced[0].unrated_requests == 0 and priced[0].equals_ledger
    fold()
    assert said(month) == priced


def test_requests_that_another_month_bills_are_taken_from_summed_days(month: Month) -> None:
    def without(ids: list[Any]) -> list[statements.Line]:
        billed = month.billed
        groups = daily_charges.between(billed.tenant_id, billed.first, billed.behind, None, ids)
        return list(statements._lines([each | {"adjusts": None} for each in groups], is_detailed=True))

    rows = UsageRecord.objects.filter(tenant_id=month.tenant.id).order_by("id")
    some = [each.id for each in rows[20:340:4]]
    before, every = without(some), without([])
    fold()
    assert without(some) == before != every == without([])


def test_a_day_that_changed_while_its_charges_were_summed_is_read_from_requests(month: Month) -> None:
    fold()
    FoldedDay.objects.filter(starts_at=START + DAY).delete()
    assert not daily_charges.write(START + DAY)
    assert daily_charges.waiting() == []
    before = said(month)
    DailyCharge.objects.filter(starts_at=START + DAY).delete()
    assert said(month) == before


def test_a_day_that_is_folded_again_while_its_charges_are_summed_is_read_from_requests(
    month: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold()
    day, real = START + DAY, daily_charges._sum
    FoldedDay.objects.filter(starts_at=day).update(has_charges=False, folded_at=NOW - DAY)

    def sum_slowly(of: datetime) -> None:
        real(of)
        FoldedDay.objects.filter(starts_at=of).update(folded_at=NOW)  # as another process does after a late request

    monkeypatch.setattr(daily_charges, "_sum", sum_slowly)
    assert not daily_charges.write(day)
    assert daily_charges.waiting() == [day]


def test_a_retired_day_is_not_summed_again(month: Month) -> None:
    fold()
    FoldedDay.objects.update(has_charges=False)
    assert daily_charges.waiting()[-1] == START - DAY
    UsageExport.objects.create(
        partition="billing_usagerecord_2026_02_28", begins_at=START - DAY, ends_at=START, retired_at=NOW,
        rows=1, file_bytes=1, sha256="", node="", path="",
    )  # fmt: skip
    assert daily_charges.waiting()[-1] == START


def test_summed_days_of_others_are_hidden(month: Month) -> None:
    fold()
    before = statements.computed(month)
    other = Tenant.objects.get(slug="other")
    with as_tenant(TenantId(month.tenant.id)):
        assert statements.computed(month) == before
        assert not DailyCharge.objects.filter(tenant_id=other.id).exists()
    with as_tenant(TenantId(new_id())):
        assert not DailyCharge.objects.exists()

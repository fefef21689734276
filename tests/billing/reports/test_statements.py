"""The monthly statement: exact lines, one rounding, equal to the ledger, without other tenants' usage."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_field

from billing.drain import batch
from billing.ledger.usage_rows import UsageRow
from billing.pricing import amounts
from billing.pricing.classes import LineClass, Priority
from billing.pricing.prices import DEMO_RATES
from billing.pricing.rating import Rates
from billing.reports import statements
from billing.reports.statements import Line
from billing.wal.records import State
from tenants.database import rls
from tenants.ids import TenantId, new_id
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
DOUBLE = Rates(
    prompt_pico=300_000,
    cached_prompt_pico=30_000,
    completion_pico=1_200_000,
    prediction_hit_pico=500,
    coalesced_pico=300,
)


@pytest.fixture
def tenant_id() -> TenantId:
    return TenantId(Tenant.objects.create(slug="acme", name="Acme").id)


def test_a_month_lists_each_class_at_each_price_and_equals_the_ledger(tenant_id: TenantId) -> None:
    price_from(MARCH - timedelta(days=9), DEMO_RATES)
    price_from(MIDDLE, DOUBLE)
    before, after = MIDDLE - timedelta(milliseconds=1), MIDDLE

    def coalesced(state: State, *, told: bool = True, avoided: tuple[int, int, int] = (0, 0, 0)) -> UsageRow:
        made = row_at(after, tenant_id, state=state, cache_result="coalesced", tokens=(0, 0, 0), avoided=avoided)
        return made if told else replace_field(made, ttft_ms=None)

    rows = (
        row_at(before, tenant_id, tokens=(1000, 400, 30)),
        row_at(before, tenant_id, tokens=(500, 0, 20)),
        row_at(after, tenant_id, tokens=(10, 0, 1)),
        row_at(after, tenant_id, cache_result="hit", tokens=(0, 0, 0), avoided=(1400, 0, 30)),
        coalesced("complete", avoided=(1000, 400, 30)),
        coalesced("client_gone"),
        coalesced("client_gone", told=False),
        coalesced("engine_error"),
        row_at(after, tenant_id, state="engine_error", tokens=(77, 0, 0)),
        row_at(after, tenant_id, purpose="canary"),
        row_at(after, TenantId(new_id())),
    )
    store(*[replace_field(row, avoided_engine_ms=80.4) if row.avoided_prompt_tokens else row for row in rows])
    found = statements.statement(tenant_id, 2026, 3)
    assert found.lines == (
        Line(model_name="demo", token_class="prompt", quantity=1500, unit_price_pico=150_000, currency="USD"),
        Line(model_name="demo", token_class="cached_prompt", quantity=400, unit_price_pico=15_000, currency="USD"),
        Line(model_name="demo", token_class="completion", quantity=50, unit_price_pico=600_000, currency="USD"),
        Line(model_name="demo", token_class="coalesced", quantity=2, unit_price_pico=300, currency="USD"),
        Line(model_name="demo", token_class="prediction_hit", quantity=1, unit_price_pico=500, currency="USD"),
        Line(model_name="demo", token_class="prompt", quantity=10, unit_price_pico=300_000, currency="USD"),
        Line(model_name="demo", token_class="completion", quantity=1, unit_price_pico=1_200_000, currency="USD"),
    )
    assert found.amount_pico == 225_000_000 + 6_000_000 + 30_000_000 + 500 + 600 + 3_000_000 + 1_200_000
    assert found.ledger_pico == found.amount_pico
    assert found.equals_ledger
    assert (found.requests, found.free_requests, found.unrated_requests) == (9, 3, 0)
    assert (found.savings.prefix_tokens, found.savings.prefix_pico) == (400, 400 * 135_000)
    assert (found.savings.prediction_hits, found.savings.coalesced_requests) == (1, 2)
    assert found.savings.prediction_tokens == 2 * 1430
    assert found.savings.prediction_engine_ms == 2 * 80
    hit_pico, coalesced_pico = 1400 * 300_000, 1000 * 300_000 + 400 * 30_000
    assert found.savings.prediction_pico == hit_pico + coalesced_pico + 60 * 1_200_000 - 500 - 300


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("Asia/Kathmandu", datetime(2026, 2, 28, 18, 15, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 3, 1, 5, 0, tzinfo=UTC)),
    ],
)
def test_a_month_begins_and_ends_in_the_tenants_time_zone(tenant_id: TenantId, zone: str, start: datetime) -> None:
    Tenant.objects.filter(id=tenant_id).update(billing_timezone=zone)
    price_from(MARCH - timedelta(days=40), DEMO_RATES)
    instant = timedelta(milliseconds=1)
    # New York changes to summer time in March, so the month is an hour shorter.
    end = datetime(2026, 4, 1, 4, 0, tzinfo=UTC) if zone == "America/New_York" else start + timedelta(days=31)
    # One batch across both ends of the month: each posting must still belong to one month.
    store(*[row_at(moment, tenant_id) for moment in (start - instant, start, end - instant, end)])
    months = [statements.statement(tenant_id, 2026, month) for month in (2, 3, 4)]
    assert [month.requests for month in months] == [1, 2, 1]
    assert all(month.equals_ledger for month in months)


def test_usage_without_a_price_is_told_and_not_charged(tenant_id: TenantId) -> None:
    store(row_at(MIDDLE, tenant_id))
    found = statements.statement(tenant_id, 2026, 3)
    assert (found.requests, found.unrated_requests, found.amount_pico, found.lines) == (1, 1, 0, ())
    price_from(MIDDLE + timedelta(days=1), DEMO_RATES)
    assert batch.rate_unrated() == 1
    found = statements.statement(tenant_id, 2026, 3)
    assert (found.unrated_requests, found.amount_pico) == (0, 30 * 150_000 + 10 * 15_000 + 7 * 600_000)
    assert found.equals_ledger


def test_classes_have_lines_only_at_prices_of_their_own(tenant_id: TenantId) -> None:
    price_from(MARCH, DEMO_RATES)
    price_from(MIDDLE, replace(DEMO_RATES, cache_write_pico=187_500, reasoning_pico=1_200_000))
    parts = {"cache_write_tokens": 24, "reasoning_tokens": 5}
    for moment in (MIDDLE - timedelta(days=1), MIDDLE):
        store(replace_field(row_at(moment, tenant_id), **parts))
    found = statements.statement(tenant_id, 2026, 3)
    assert [(line.token_class, line.quantity, line.unit_price_pico) for line in found.lines] == [
        ("prompt", 30, 150_000),
        ("cached_prompt", 10, 15_000),
        ("completion", 7, 600_000),
        ("prompt", 6, 150_000),
        ("cache_write", 24, 187_500),
        ("cached_prompt", 10, 15_000),
        ("completion", 2, 600_000),
        ("reasoning", 5, 1_200_000),
    ]
    assert found.equals_ledger


def test_requests_and_priorities_have_lines_at_their_prices_and_equal_the_ledger(tenant_id: TenantId) -> None:
    price_from(MARCH, replace(DEMO_RATES, request_pico=1_000, low_priority_bp=5_000))

    def with_priority(priority: str, **given: Any) -> UsageRow:
        return replace_field(row_at(MIDDLE, tenant_id, **given), priority=priority)

    store(
        with_priority("standard", tokens=(10, 0, 0)),
        with_priority("high", tokens=(5, 0, 0)),  # at this price as the standard one
        with_priority("low", tokens=(8, 0, 1)),
        with_priority("low", cache_result="hit", tokens=(0, 0, 0), avoided=(8, 0, 1)),
        with_priority("low", state="engine_error", tokens=(9, 0, 0)),
        with_priority("standard", state="refused", tokens=(0, 0, 0)),
    )
    found = statements.statement(tenant_id, 2026, 3)

    def line(token_class: LineClass, quantity: int, price: int, priority: Priority = "standard") -> Line:
        return Line(
            model_name="demo",
            token_class=token_class,
            quantity=quantity,
            unit_price_pico=price,
            currency="USD",
            priority=priority,
        )

    assert found.lines == (
        line("prediction_hit", 1, 0),
        line("prompt", 15, 150_000),
        line("request", 2, 1_000),
        line("prompt", 8, 75_000, "low"),
        line("completion", 1, 300_000, "low"),
        line("request", 1, 500, "low"),
    )
    assert found.equals_ledger and found.amount_pico == 15 * 150_000 + 2_000 + 8 * 75_000 + 300_000 + 500
    assert found.savings.prediction_pico == 8 * 75_000 + 300_000 + 500
    assert list(statements.csv_rows(found))[-4][-1] == "low"


def test_the_csv_holds_exact_amounts_and_adds_up(tenant_id: TenantId) -> None:
    price_from(MARCH, replace(DEMO_RATES, prompt_pico=10**9))
    store(row_at(MIDDLE, tenant_id, tokens=(25, 0, 7)))
    rows = list(statements.csv_rows(statements.statement(tenant_id, 2026, 3)))
    assert rows[0] == statements.CSV_HEADER
    assert rows[1:] == [
        ("demo", "prompt", "token", "25", "1000000000", "25000000000", "0.025", "USD", "", "", "standard"),
        ("demo", "completion", "token", "7", "600000", "4200000", "0.0000042", "USD", "", "", "standard"),
        ("", "total", "", "", "", "25004200000", "0.0250042", "USD", "", "", ""),
        ("", "rounding", "", "", "", "-5004200000", "-0.0050042", "USD", "", "", ""),
        ("", "due", "", "", "", "20000000000", "0.02", "USD", "", "", ""),
    ]


def test_refusals_are_not_on_a_statement(tenant_id: TenantId) -> None:
    price_from(MARCH, DEMO_RATES)
    before = statements.statement(tenant_id, 2026, 3)
    store(replace_field(row_at(MIDDLE, tenant_id, state="refused", tokens=(0, 0, 0)), refusals=9))
    assert statements.statement(tenant_id, 2026, 3) == before


@given(pico=st.integers(min_value=-(10**20), max_value=10**20))
def test_cents_round_half_to_even(pico: int) -> None:
    assert amounts.minor(pico, "USD") == int((Decimal(pico) / 10**10).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def test_a_tenant_reads_its_own_statement_and_a_stranger_an_empty_one(tenant_id: TenantId) -> None:
    stranger = TenantId(Tenant.objects.create(slug="globex", name="Globex").id)
    price_from(MARCH, DEMO_RATES)
    store(row_at(MIDDLE, tenant_id))
    expected = statements.statement(tenant_id, 2026, 3)
    with rls.as_tenant(tenant_id):
        assert statements.statement(tenant_id, 2026, 3) == expected
        assert expected.equals_ledger
    with rls.as_tenant(stranger), pytest.raises(Tenant.DoesNotExist):
        statements.statement(tenant_id, 2026, 3)
    with rls.as_tenant(stranger):
        assert statements.statement(stranger, 2026, 3).requests == 0

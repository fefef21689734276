"""What engines cost: the example of docs/billing/chargeback.md, exact shares, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_field

from billing.chargeback import costs
from billing.chargeback.costs import Costs
from billing.errors import UsageDeleted
from billing.models import UsageExport
from billing.pricing import amounts
from billing.pricing.prices import DEMO_RATES
from tenants.ids import TenantId, new_id
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

CHAPTER = (Path(__file__).parents[3] / "docs" / "billing" / "chargeback.md").read_text()
NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
HOUR_MS = 3_600_000
DOLLAR = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """A replica's slots, by default one for two hours at 2.50."""

    replica_id: UUID
    deployment: str = "demo"
    pool: str = "gpus"
    slots: int = 1
    slot_ms: int = 2 * HOUR_MS
    slot_hour_pico: int | None = 5 * DOLLAR // 2


@pytest.fixture
def tenants(db: None) -> dict[str, Tenant]:
    price_from(datetime(2026, 1, 1, tzinfo=UTC), replace(DEMO_RATES, prompt_pico=600_000))
    return {slug: Tenant.objects.create(slug=slug, name=slug) for slug in ("acme", "globex")}


def ran(tenant: Tenant, replica_id: UUID, begins: datetime, minutes: float, tokens: int, queue_ms: float = 0.0) -> None:
    """Store a request that an engine ran for so many minutes, after so long in the queue."""
    ms = minutes * 60_000
    row = row_at(begins - timedelta(milliseconds=queue_ms), TenantId(tenant.id), tokens=(tokens, 0, 0))
    ends = begins + timedelta(milliseconds=ms)
    store(
        replace_field(row, replica_id=replica_id, duration_ms=ms + queue_ms, queue_ms=queue_ms, finished_at=ends),
    )


def example(tenants: dict[str, Tenant], **slots: object) -> Costs:
    replica = new_id()
    ran(tenants["acme"], replica, NOON, 18, 500_000, queue_ms=4_000)
    ran(tenants["globex"], replica, NOON + timedelta(minutes=18), 6, 100_000)
    return costs.read(2026, 3, [replace(Slots(replica_id=replica), **slots)])  # type: ignore[arg-type]


def test_the_example_of_the_chapter_is_what_is_computed(tenants: dict[str, Tenant]) -> None:
    found = example(tenants)
    (one,) = found.deployments
    assert (one.slot_ms, one.busy_slot_ms, one.tokens, one.unused_pico) == (2 * HOUR_MS, 24 * 60_000, 600_000, 0)
    cells = [
        f"{one.slot_ms // HOUR_MS} h",
        f"{(one.busy_share or 0) * 100:.0f} %",
        str(one.tokens),
        amounts.units(one.cost_pico or 0, "USD"),
        amounts.units(one.per_million_pico or 0, "USD"),
    ]
    assert f"| deployment | {' | '.join(cells)} |" in CHAPTER
    for each in found.margins:
        money = [amounts.units(pico or 0, "USD") for pico in (each.revenue_pico, each.cost_pico, each.margin_pico)]
        assert f"| {each.tenant} | {each.engine_ms // 1000} s | {' | '.join(money)} |" in CHAPTER


def test_requests_that_overlap_make_a_replica_busy_once_and_days_add_up(tenants: dict[str, Tenant]) -> None:
    replica, midnight = new_id(), datetime(2026, 3, 17, tzinfo=UTC)
    ran(tenants["acme"], replica, midnight - timedelta(minutes=10), 20, 10)
    ran(tenants["globex"], replica, midnight - timedelta(minutes=5), 20, 10)
    (one,) = costs.read(2026, 3, [Slots(replica_id=replica, slots=2, slot_ms=4 * HOUR_MS)]).deployments
    assert (one.busy_slot_ms, one.engine_ms) == (2 * 25 * 60_000, 40 * 60_000)


def test_what_the_prediction_cache_saved_is_slots_time_not_spent(tenants: dict[str, Tenant]) -> None:
    hit = row_at(NOON, TenantId(tenants["acme"].id), cache_result="hit", tokens=(0, 0, 0), avoided=(10, 0, 1))
    store(replace_field(hit, avoided_engine_ms=720_000.0))
    (one,) = example(tenants).deployments
    # 24 minutes of engine time made the slot busy for 24 minutes, so 12 more are 12 more: 0.20 h at 2.50.
    assert (one.not_spent_engine_ms, one.not_spent_slot_ms, one.not_spent_pico) == (720_000, 720_000, DOLLAR // 2)


def test_a_slot_without_a_cost_makes_costs_and_margins_unknown(tenants: dict[str, Tenant]) -> None:
    found = example(tenants, slot_hour_pico=None)
    assert (found.deployments[0].cost_pico, found.deployments[0].per_million_pico) == (None, None)
    assert [(each.cost_pico, each.margin_pico) for each in found.margins] == [(None, None)] * 2
    assert list(costs.costs_csv(found))[1][6:8] == ("", "")


def test_a_deployment_that_nobody_used_is_unused(tenants: dict[str, Tenant]) -> None:
    found = costs.read(2026, 3, [Slots(replica_id=new_id())])
    assert (found.deployments[0].unused_pico, found.deployments[0].per_million_pico) == (5 * DOLLAR, None)
    assert found.margins == ()


def test_another_currency_has_no_margin(tenants: dict[str, Tenant]) -> None:
    Tenant.objects.filter(slug="globex").update(currency="EUR")
    assert [(each.tenant, each.margin_pico is None) for each in example(tenants).margins] == [
        ("acme", False),
        ("globex", True),
    ]


def test_a_month_whose_requests_were_deleted_is_refused(tenants: dict[str, Tenant]) -> None:
    UsageExport.objects.create(
        partition="p", begins_at=NOON, ends_at=NOON + timedelta(days=1), rows=1, file_bytes=1, sha256="0" * 64,
        node="n", path="/p", retired_at=NOON,
    )  # fmt: skip
    with pytest.raises(UsageDeleted, match="the requests of 2026-03 were deleted"):
        costs.read(2026, 3, [])


@given(
    total=st.integers(min_value=0, max_value=10**18),
    shares=st.lists(st.integers(min_value=0, max_value=10**12), min_size=1, max_size=9).filter(any),
)
def test_parts_add_up_exactly_and_are_within_one_of_their_share(total: int, shares: list[int]) -> None:
    parts = costs.divided(total, shares)
    assert sum(parts) == total
    for part, share in zip(parts, shares, strict=True):
        assert abs(part * sum(shares) - total * share) < sum(shares)

"""Percentiles by model, tenant, key and day, from roll-ups that many batches added to."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from billing.drain import batch
from billing.ledger.latency_buckets import Percentiles
from billing.ledger.usage_rows import UsageRow
from billing.models import UsageRollup
from billing.pricing.prices import DEMO_RATES
from billing.reports import breakdown, latency
from billing.reports.breakdown import By, Group
from portal.reporting.periods import Period
from tenants import registry
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import Project, Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 16, 23, 0, tzinfo=UTC)
PERIOD = Period(start=START, end=START + timedelta(days=3), preset=None, zone=BERLIN)


@pytest.fixture
def acme() -> Tenant:
    return registry.create_tenant(SYSTEM, slug="acme", name="Acme")


@pytest.fixture
def rows(acme: Tenant) -> list[UsageRow]:
    """Requests of two models and two keys on three days of Berlin, in batches; another tenant's are slower."""
    price_from(START - timedelta(days=9), DEMO_RATES)
    project = Project.objects.get(tenant=acme)
    issued = [keys.issue(SYSTEM, project, name=name, scopes=["inference"]).key for name in ("one", "two")]
    source, made = random.Random(7), []
    for number in range(120):
        moment = START + timedelta(minutes=source.randrange(3 * 24 * 60))
        row = row_at(moment, TenantId(acme.id), model_name=f"model-{number % 2}")
        made.append(
            msgspec.structs.replace(
                row,
                key_id=issued[number % 3 % 2].id,
                project_id=project.id,
                ttft_ms=source.lognormvariate(5, 1),
                tpot_ms=source.lognormvariate(3, 0.5) if number % 5 else None,
            )
        )
    for part in (made[:50], made[50:51], made[51:]):
        store(*part)
    stranger = registry.create_tenant(SYSTEM, slug="globex", name="Globex")
    store(msgspec.structs.replace(row_at(START, TenantId(stranger.id)), ttft_ms=1e6, tpot_ms=1e6))
    return made


def is_right(found: Percentiles, times: list[float]) -> bool:
    """Return whether these are the percentiles of the times, to within 4.9 %."""
    ranked = sorted(times)
    exact = [ranked[math.ceil(len(times) * percent / 100) - 1] for percent in (50, 95, 99)]
    estimates = (found.p50_ms, found.p95_ms, found.p99_ms)
    near = all(each is not None and 0.953 < each / right < 1.049 for each, right in zip(estimates, exact, strict=True))
    return near and found.requests == len(times)


def name_of(by: By, row: UsageRow) -> str:
    if by == "day":
        moment = datetime.fromtimestamp((row.id.int >> 80) / 1000, tz=UTC)
        return f"{moment.astimezone(BERLIN):%Y-%m-%d}"
    return {"model": row.model_name, "key": str(row.key_id)}.get(by, "")


@pytest.mark.parametrize("by", ["model", "key", "day", "project", "tenant", "cost_centre"])
def test_percentiles_are_those_of_the_requests(acme: Tenant, rows: list[UsageRow], by: By) -> None:
    groups: tuple[Group, ...] = breakdown.grouped(PERIOD, TenantId(acme.id), by)
    assert len(groups) == {"model": 2, "key": 2, "day": 3}.get(by, 1)
    for group in groups:
        shown = str(group.id) if by == "key" else group.name
        own = [row for row in rows if name_of(by, row) in {shown, ""}]
        assert group.latency is not None
        assert is_right(group.latency.ttft, [row.ttft_ms for row in own if row.ttft_ms is not None])
        assert is_right(group.latency.tpot, [row.tpot_ms for row in own if row.tpot_ms is not None])


def test_a_batch_stored_again_adds_nothing(acme: Tenant, rows: list[UsageRow]) -> None:
    before = latency.total(PERIOD, TenantId(acme.id))
    assert batch.store(rows, {}, node="here") == 0
    assert latency.total(PERIOD, TenantId(acme.id)) == before


def test_a_rotated_key_counts_with_its_successor(acme: Tenant, rows: list[UsageRow]) -> None:
    old = keys.issue(SYSTEM, Project.objects.get(tenant=acme), name="old", scopes=["inference"]).key
    new = keys.rotate(SYSTEM, old, timedelta(0)).key
    moment = START + timedelta(hours=1)
    row = msgspec.structs.replace(row_at(moment, TenantId(acme.id)), project_id=old.project_id)
    store(
        *[msgspec.structs.replace(row, id=row_at(moment, TenantId(acme.id)).id, key_id=each.id) for each in (old, new)]
    )
    [group] = [each for each in breakdown.grouped(PERIOD, TenantId(acme.id), "key") if each.id == new.id]
    assert group.latency is not None
    assert group.latency.ttft.requests == group.sums.requests == 2


def test_roll_ups_of_an_earlier_release_have_none(acme: Tenant, rows: list[UsageRow]) -> None:
    UsageRollup.objects.update(latency_buckets=[], latency_counts=[])
    found = latency.total(PERIOD, TenantId(acme.id))
    assert found.ttft == found.tpot == Percentiles()
    store(msgspec.structs.replace(rows[0], id=row_at(START, TenantId(acme.id)).id, ttft_ms=50.0))
    assert latency.total(PERIOD, TenantId(acme.id)).ttft.requests == 1


def test_pricing_a_waiting_request_does_not_count_it_again(acme: Tenant) -> None:
    store(row_at(START, TenantId(acme.id)))
    before = latency.total(PERIOD, TenantId(acme.id))
    price_from(START + timedelta(days=1), DEMO_RATES)
    assert batch.rate_unrated() == 1
    assert before.ttft.requests == 1
    assert latency.total(PERIOD, TenantId(acme.id)) == before

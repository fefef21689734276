"""Savings by group: groups sum to the total, rotated keys count as one, other tenants see nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from billing.models import NO_KEY, UsageRollup
from billing.pricing.prices import DEMO_RATES
from billing.reports import savings, usage
from billing.reports.savings import By, BypassCount, Savings
from tenants.database import rls
from tenants.ids import TenantId
from tenants.keys import keys
from tests.billing.budget_fixture import DAY, NOON, row
from tests.billing.usage_records import Span, price_from, store
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db

AROUND = Span(start=NOON - timedelta(hours=1), end=NOON + timedelta(hours=1))
FULL_PICO = 30 * 150_000 + 10 * 15_000 + 7 * 600_000


def tenant_of(customer: Customer) -> TenantId:
    return TenantId(customer.tenant.id)


@pytest.fixture
def acme() -> Customer:
    """Acme with a miss, a hit of a rotated key, a coalesced response of its successor and two bypasses; Globex with a
    miss."""
    price_from(NOON - 400 * DAY, DEMO_RATES)
    acme, globex = customers.create("acme"), customers.create("globex")
    heir = keys.rotate(OPERATOR, acme.key, DAY).key
    avoided = {
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "completion_tokens": 0,
        "avoided_prompt_tokens": 30,
        "avoided_cached_prompt_tokens": 10,
        "avoided_completion_tokens": 7,
        "avoided_engine_ms": 250.0,
    }
    store(
        row(acme, NOON),
        replace(row(acme, NOON), cache_result="hit", **avoided),
        replace(row(acme, NOON), cache_result="coalesced", key_id=heir.id, **avoided),
        replace(row(acme, NOON), cache_result="bypass", cache_reason="sampled", key_id=heir.id),
        replace(row(acme, NOON), cache_result="bypass", cache_reason="off", model_name="other"),
        row(globex, NOON),
    )
    return acme


def test_each_cache_is_told_apart_in_tokens_money_and_engine_time(acme: Customer) -> None:
    found = Savings.of(usage.totals(AROUND, tenant_of(acme)))
    assert found.requests == 5
    assert found.prediction == savings.Prediction(
        hits=1, coalesced=1, misses=1, bypassed=2, tokens=94, engine_ms=500, pico=2 * FULL_PICO
    )
    assert found.prefix == savings.Prefix(requests=3, tokens=30, pico=2 * 10 * 135_000)


@pytest.mark.parametrize("by", ["tenant", "project", "key", "model"])
def test_groups_add_up_to_the_total(acme: Customer, by: By) -> None:
    groups = savings.grouped(AROUND, None, by)
    total = usage.totals(AROUND, None)
    assert sum(group.sums.saved_prediction_pico for group in groups) == total.saved_prediction_pico
    assert sum(group.sums.requests for group in groups) == total.requests == 6


def test_a_rotated_key_counts_with_its_heir(acme: Customer) -> None:
    (group,) = savings.grouped(AROUND, tenant_of(acme), "key")
    heir = acme.tenant.projects.get().keys.latest("id")
    assert (group.id, group.name, group.sums) == (heir.id, heir.name, usage.totals(AROUND, tenant_of(acme)))


def test_what_was_summed_before_keys_were_told_apart_has_none(acme: Customer) -> None:
    UsageRollup.objects.filter(tenant_id=acme.tenant.id, model_name="other").update(key_id=NO_KEY)
    groups = savings.grouped(AROUND, tenant_of(acme), "key")
    assert [(group.id is None, group.sums.requests) for group in groups] == [(False, 4), (True, 1)]


def test_bypasses_are_counted_by_reason(acme: Customer) -> None:
    assert savings.bypasses(AROUND, tenant_of(acme)) == (
        BypassCount(reason="off", requests=1),
        BypassCount(reason="sampled", requests=1),
    )
    later = Span(start=datetime(2030, 1, 1, tzinfo=UTC), end=datetime(2030, 1, 2, tzinfo=UTC))
    assert savings.bypasses(later, None) == ()


def test_a_stranger_reads_nothing_of_it(acme: Customer) -> None:
    with rls.as_tenant(tenant_of(customers.create("initech"))):
        for by in ("tenant", "project", "key", "model"):
            assert savings.grouped(AROUND, tenant_of(acme), by) == ()
        assert savings.bypasses(AROUND, None) == ()
    with rls.as_tenant(tenant_of(acme)):
        assert [group.name for group in savings.grouped(AROUND, None, "tenant")] == ["acme"]
        assert savings.grouped(AROUND, None, "key")[0].sums.requests == 5

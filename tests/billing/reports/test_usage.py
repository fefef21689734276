"""Reports: consistent numbers in every view, and none of other tenants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from billing.ledger.rollups import Sums
from billing.pricing.prices import DEMO_RATES
from billing.reports import usage
from billing.reports.usage import Filters
from tenants.database import rls
from tenants.ids import TenantId, new_id
from tenants.models import Tenant
from tests.billing.usage_records import Span, price_from, row_at, store

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
DAY = Span(start=NOON - timedelta(hours=12), end=NOON + timedelta(hours=12))
AMOUNT_PICO = 30 * 150_000 + 10 * 15_000 + 7 * 600_000
SAVED_PICO = 10 * 135_000


@pytest.fixture
def tenant_ids() -> tuple[TenantId, TenantId]:
    """Acme with four requests in two quarters of an hour, and Globex with one."""
    acme, globex = (TenantId(Tenant.objects.create(slug=slug, name=slug).id) for slug in ("acme", "globex"))
    price_from(NOON - timedelta(days=1), DEMO_RATES)
    price_from(NOON - timedelta(days=1), DEMO_RATES, model_name="other")
    store(
        row_at(NOON, acme),
        row_at(NOON + timedelta(minutes=1), acme, cache_result="hit", tokens=(0, 0, 0), avoided=(40, 0, 7)),
        row_at(NOON + timedelta(minutes=2), acme, state="engine_error", tokens=(30, 0, 0)),
        row_at(NOON + timedelta(minutes=31), acme, model_name="other"),
        row_at(NOON, globex),
        row_at(NOON, globex, purpose="canary"),
    )
    return acme, globex


ACME = Sums(
    requests=4,
    errors=1,
    prediction_hits=1,
    prefix_hits=2,
    prompt_tokens=90,
    cached_prompt_tokens=20,
    completion_tokens=14,
    avoided_tokens=47,
    amount_pico=2 * AMOUNT_PICO,
    saved_prediction_pico=40 * 150_000 + 7 * 600_000,
    saved_prefix_pico=2 * SAVED_PICO,
)


def test_totals_of_one_tenant_and_of_all(tenant_ids: tuple[TenantId, TenantId]) -> None:
    acme, globex = tenant_ids
    assert usage.totals(DAY, acme) == ACME
    assert usage.totals(DAY, globex).requests == 1
    everything = usage.totals(DAY, None)
    assert (everything.requests, everything.amount_pico) == (5, 3 * AMOUNT_PICO)
    assert usage.totals(Span(start=DAY.end, end=DAY.end + timedelta(days=1)), None) == Sums()
    assert usage.totals(DAY, TenantId(new_id())) == Sums()


def test_a_series_has_every_step_and_adds_up_to_the_totals(tenant_ids: tuple[TenantId, TenantId]) -> None:
    hour = Span(start=NOON, end=NOON + timedelta(hours=1))
    points = usage.series(hour, tenant_ids[0], 900)
    assert [point.starts_at for point in points] == [NOON + timedelta(minutes=15 * number) for number in range(4)]
    assert [point.sums.requests for point in points] == [3, 0, 1, 0]
    assert sum(point.sums.amount_pico for point in points) == usage.totals(hour, tenant_ids[0]).amount_pico
    (whole,) = usage.series(hour, None, 3600)
    assert whole.sums == usage.totals(hour, None)


def test_steps_are_anchored_at_the_periods_start(tenant_ids: tuple[TenantId, TenantId]) -> None:
    odd = Span(start=NOON - timedelta(minutes=15), end=NOON + timedelta(minutes=45))
    points = usage.series(odd, tenant_ids[0], 1800)
    assert [(point.starts_at, point.sums.requests) for point in points] == [
        (NOON - timedelta(minutes=15), 3),
        (NOON + timedelta(minutes=15), 1),
    ]


@pytest.mark.parametrize("step_seconds", [0, 60, 1000])
def test_a_step_that_roll_ups_cannot_show_is_refused(step_seconds: int) -> None:
    with pytest.raises(ValueError, match="a quarter of an hour"):
        usage.series(DAY, None, step_seconds)


def test_tenants_and_models_are_ordered_by_amount(tenant_ids: tuple[TenantId, TenantId]) -> None:
    acme, globex = tenant_ids
    found = usage.by_tenant(DAY)
    assert [(one.tenant_id, one.slug, one.sums.requests) for one in found] == [(acme, "acme", 4), (globex, "globex", 1)]
    assert found[0].sums == ACME
    models = [(one.model_name, one.sums.requests) for one in usage.by_model(DAY, acme)]
    assert models == [("demo", 3), ("other", 1)]


def test_requests_page_backwards_without_gap_or_repeat(tenant_ids: tuple[TenantId, TenantId]) -> None:
    acme, _ = tenant_ids
    first = usage.requests(acme, limit=3)
    second = usage.requests(acme, before_id=first[-1].id, limit=3)
    assert [one.model_name for one in first] == ["other", "demo", "demo"]
    assert len({one.id for one in (*first, *second)}) == 4
    assert [*first, *second] == sorted((*first, *second), key=lambda one: one.id, reverse=True)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (Filters(), 8),
        (Filters(purpose=None), 9),
        (Filters(purpose="canary"), 1),
        (Filters(model_name="other"), 1),
        (Filters(cache_result="hit"), 1),
        (Filters(state="engine_error"), 1),
        (Filters(errors="all"), 3),
        (Filters(errors="platform"), 1),
        (Filters(errors="client"), 2),
        (Filters(request_id="theirs"), 1),
        (Filters(request_id="theirs", start=NOON + timedelta(hours=1)), 0),
        (Filters(start=NOON + timedelta(minutes=1), end=NOON + timedelta(minutes=31)), 2),
        (Filters(key_ids=[new_id()]), 0),
    ],
)
def test_requests_can_be_filtered(tenant_ids: tuple[TenantId, TenantId], filters: Filters, count: int) -> None:
    acme, _ = tenant_ids
    store(
        replace(row_at(NOON, acme, state="refused", tokens=(0, 0, 0)), http_status=400),
        replace(row_at(NOON, acme, state="refused", tokens=(0, 0, 0)), http_status=429, refusals=5),
        replace(row_at(NOON, acme, state="client_gone"), http_status=499, client_request_id="theirs"),
    )
    assert len(usage.requests(None, filters=filters)) == count


def test_a_request_is_found_by_its_id_whatever_its_time_and_by_nobody_else(
    tenant_ids: tuple[TenantId, TenantId],
) -> None:
    acme, globex = tenant_ids
    (newest,) = usage.requests(acme, limit=1)
    filters = Filters(request_id=str(newest.id), start=NOON + timedelta(days=30))
    assert usage.requests(acme, filters=filters) == (newest,)
    assert usage.requests(globex, filters=filters) == ()


def test_a_request_is_shown_with_its_charge(tenant_ids: tuple[TenantId, TenantId]) -> None:
    (newest,) = usage.requests(tenant_ids[0], limit=1)
    found = usage.request(tenant_ids[0], newest.id)
    assert found == newest
    assert (newest.amount_pico, newest.saved_prefix_pico, newest.currency) == (AMOUNT_PICO, SAVED_PICO, "USD")


def test_a_stranger_sees_nothing_even_when_it_asks_for_another_tenant(
    tenant_ids: tuple[TenantId, TenantId],
) -> None:
    acme, globex = tenant_ids
    (newest,) = usage.requests(acme, limit=1)
    assert usage.request(globex, newest.id) is None
    with rls.as_tenant(TenantId(new_id())):
        for asked in (acme, None):
            assert usage.totals(DAY, asked) == Sums()
            assert usage.requests(asked) == ()
            assert usage.request(asked, newest.id) is None
            assert usage.by_model(DAY, asked) == ()
            assert all(point.sums == Sums() for point in usage.series(DAY, asked, 3600))
        assert usage.by_tenant(DAY) == ()
    with rls.as_tenant(globex):
        assert [one.slug for one in usage.by_tenant(DAY)] == ["globex"]

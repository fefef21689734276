"""The monthly savings statement: by model, equal to the statement, frozen with it, and never a request twice."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.db import connection
from msgspec.structs import replace as replace_field

from billing.ledger.usage_rows import UsageRow
from billing.models import BillingMonth
from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports import savings_statement, statements
from billing.reports.model_savings import FEWEST_STREAMS
from billing.reports.savings_statement import SavingsStatement
from billing.reports.statements import Month
from tenants.audit import Actor
from tenants.database import rls
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
NOON = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
CHAPTER = Path(__file__).parents[3] / "docs" / "billing" / "savings-statement.md"
#: The prices and the time of the chapter's example.
EXAMPLE = replace(DEMO_RATES, prompt_pico=150_000, cached_prompt_pico=15_000, completion_pico=600_000)
EXAMPLE_MS = 0.05


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def streams(tenant: Tenant, count: int, *, per_token_ms: float = EXAMPLE_MS) -> Iterator[UsageRow]:
    """Yield streams with ever longer prompts, which take 40 ms and then so long per token, and 5 ms in the queue."""
    for number in range(count):
        tokens = 100 * (number + 1)
        row = row_at(NOON + timedelta(minutes=number), TenantId(tenant.id), tokens=(tokens, 0, 10))
        yield replace_field(row, stream=True, queue_ms=5.0, ttft_ms=45.0 + per_token_ms * tokens)


def use(tenant: Tenant, count: int = FEWEST_STREAMS) -> None:
    """The chapter's example, one request each, beside the streams on which the prefill is measured."""
    price_from(MARCH - timedelta(days=9), EXAMPLE)
    hit = row_at(NOON, TenantId(tenant.id), cache_result="hit", tokens=(0, 0, 0), avoided=(1000, 0, 100))
    ran = replace_field(row_at(NOON, TenantId(tenant.id), tokens=(600, 400, 100)), stream=False)
    store(replace_field(hit, avoided_engine_ms=780.0), ran, *streams(tenant, count))


def read(tenant: Tenant) -> SavingsStatement:
    with rls.as_tenant(TenantId(tenant.id)):
        return savings_statement.read(tenant, 2026, 3)


def test_the_chapters_example_is_what_is_computed(acme: Tenant) -> None:
    use(acme)
    hit, prefix = savings_statement.rows(read(acme))
    assert (hit.cache, hit.requests, hit.tokens, hit.engine_ms, hit.engine_time_is) == (
        "prediction", 1, 1100, 780, "recorded",
    )  # fmt: skip
    assert (prefix.cache, prefix.requests, prefix.tokens, prefix.engine_time_is) == ("prefix", None, 400, "estimated")
    text = CHAPTER.read_text()
    assert f"= {Decimal(prefix.pico).scaleb(-12).normalize():f}; {prefix.engine_ms} ms" in text
    assert f"= {Decimal(hit.pico).scaleb(-12).normalize():f}; {hit.engine_ms} ms" in text
    assert f"are\n{FEWEST_STREAMS} or more" in text
    assert re.search(rf"took {EXAMPLE_MS} ms for one more", text)


def test_the_figures_are_those_of_the_statement(acme: Tenant) -> None:
    use(acme)
    found, statement = read(acme), statements.statement(TenantId(acme.id), 2026, 3)
    assert found.total == statement.savings
    assert found.models is not None
    for name in ("prediction_hits", "prediction_tokens", "prediction_pico", "prefix_tokens", "prefix_pico"):
        assert sum(getattr(each, name) for each in found.models) == getattr(statement.savings, name)
    assert found.without_caches_pico == statement.usage_pico + 210_000_000 + 54_000_000
    assert found.engine_ms == 780 + 20


def test_a_closed_month_keeps_them_when_its_requests_are_gone(acme: Tenant) -> None:
    use(acme)
    before = read(acme)
    closing.close(ADA, Month(tenant=acme, year=2026, month=3))
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")
    after = read(acme)
    assert after.closed_at is not None
    assert replace(after, closed_at=None, revision=None) == before


def test_a_month_that_an_earlier_release_closed_has_the_totals_alone(acme: Tenant) -> None:
    use(acme)
    closing.close(ADA, Month(tenant=acme, year=2026, month=3))
    document = BillingMonth.objects.get().document
    del document["model_savings"]
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_billingmonth DISABLE TRIGGER USER")
        BillingMonth.objects.update(document=document)
        cursor.execute("ALTER TABLE billing_billingmonth ENABLE TRIGGER USER")
    found = read(acme)
    assert found.models is None
    assert list(savings_statement.rows(found)) == []
    assert [(each.cache, each.pico, each.engine_ms) for each in savings_statement.totals(found)] == [
        ("prediction", 210_000_000, 780),
        ("prefix", 54_000_000, None),
    ]


def test_too_few_streams_measure_nothing(acme: Tenant) -> None:
    use(acme, FEWEST_STREAMS - 1)
    found = read(acme)
    assert (found.prefix_engine_ms, found.engine_ms, found.unmeasured_models) == (None, 780, ("demo",))
    assert [each.engine_time_is for each in savings_statement.totals(found)] == ["recorded", "not measured"]


def test_a_dearer_hit_saves_less_than_nothing(acme: Tenant) -> None:
    price_from(MARCH, replace(EXAMPLE, prediction_hit_pico=10**9))
    store(row_at(NOON, TenantId(acme.id), cache_result="hit", tokens=(0, 0, 0), avoided=(10, 0, 1)))
    assert read(acme).saved_pico == 10 * 150_000 + 600_000 - 10**9


def test_the_csv_is_exact(acme: Tenant) -> None:
    use(acme)
    rows = list(csv.DictReader(io.StringIO("\n".join(",".join(row) for row in savings_statement.csv_rows(read(acme))))))
    assert [(row["model"], row["cache"], row["saved"], row["engine_seconds"]) for row in rows] == [
        ("demo", "prediction", "0.00021", "0.780"),
        ("demo", "prefix", "0.000054", "0.020"),
        ("", "prediction", "0.00021", "0.780"),
        ("", "prefix", "0.000054", "0.020"),
    ]

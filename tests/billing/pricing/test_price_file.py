"""Prices of many models in one CSV file: what is refused names its line, and all of it is set, or nothing."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from msgspec.structs import replace as replace_field

from billing.errors import BadPriceFile
from billing.models import PriceVersion
from billing.months import previews
from billing.pricing import price_file, prices
from billing.pricing.price_file import Imported
from billing.pricing.prices import DEMO_RATES
from billing.pricing.rating import Rates
from tenants.audit import SYSTEM
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.usage_records import price_from, row_at, store

HEAD = "model,prompt_per_million,cached_prompt_per_million,completion_per_million"
ALL = f"{HEAD},prediction_hit_each,coalesced_each,tenant,effective_from"


@pytest.fixture
def acme(db: None) -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme", created_at=datetime(2026, 1, 1, tzinfo=UTC))


def run(*lines: str, head: str = HEAD, confirm: bool = False, dry_run: bool = False) -> Imported:
    return price_file.apply(SYSTEM, price_file.read("\n".join((head, *lines))), confirm=confirm, dry_run=dry_run)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1, model: This column is missing"),
        (HEAD, "The file has no prices"),
        ("model,prompt\nx,1", "line 1, prompt: There is no such column; use model, prompt_per_million"),
        (f"{HEAD},model\nx,1,1,1,x", "line 1: A column is given twice"),
        (f"{HEAD}\nx,1,1", "line 2: The line has more or fewer cells"),
        (f"{HEAD}\nx,1,1,1,1", "line 2: The line has more or fewer cells"),
        (f'{HEAD}\n"x,1,1,1', "line 1: This is no CSV"),
        (f"{HEAD}\n,1,1,1", "line 2, model: Use 1 to 200 printable characters"),
        (f"{HEAD}\na\0b,1,1,1", "line 2"),
        (f"{HEAD}\nx,1,1,1\nx,$1,1,1", "line 3, prompt_per_million: '$1' is no amount"),
        (f"{HEAD}\nx,,1,1", "line 2, prompt_per_million: '' is no amount"),
        (f"{HEAD}\nx,-1,1,1", "line 2, prompt_per_million: Use an amount of 0 or more"),
        (f"{HEAD}\nx,1,NaN,1", "line 2, cached_prompt_per_million: Use an amount of 0 or more"),
        (f"{HEAD}\nx,1,1e99,1", "line 2, cached_prompt_per_million: Use an amount of 0 or more"),
        (f"{HEAD}\nx,1,1,0.0000001", "line 2, completion_per_million: It has too many decimals"),
        (
            f"{HEAD},low_priority_percent\nx,1,1,1,80.001",
            "line 2, low_priority_percent: It has too many decimals; use two",
        ),
        (f"{HEAD}\nx,1,1,1\nx,2,1,1", "line 3, model: Line 2 has a price of this model from then on, too"),
        (f"{HEAD},effective_from\nx,1,1,1,soon", "line 2, effective_from: Use a moment with its time zone"),
        (f"{HEAD},effective_from\nx,1,1,1,2100-01-01", "line 2, effective_from: Use a moment with its time zone"),
        ("x" * (price_file.MAX_BYTES + 1), "The file has more than 512 KiB"),
        (HEAD + "\nx,1,1,1" * (price_file.MAX_ROWS + 1), "The file has more than 2000 prices"),
    ],
)
def test_what_is_wrong_names_its_line_and_column(text: str, problem: str) -> None:
    with pytest.raises(BadPriceFile) as refused:
        price_file.read(text)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        # The price of a token in a column for a million: $0.00000015 is 0.15 per million.
        ("demo,0.00000015,0.015,0.60,,,,", "It has too many decimals"),
        ("demo,150000,0.015,0.60,,,,", "prompt_pico of 150000000000 pico; allowed: 0 to 1000000000"),
        ("demo,1.51,0.015,0.60,,,,", "prompt_pico from 150000 to 1510000 pico, more than tenfold"),
        ("demo,0.15,0.015,0.61,,,,2020-01-01T00:00:00Z", "effective from 2020-01-01"),
        ("demo,0.15,0.015,0.61,,,globex,", "There is no tenant 'globex'"),
    ],
)
def test_one_wrong_price_sets_none(acme: Tenant, line: str, problem: str) -> None:
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    with pytest.raises(BadPriceFile, match=f"line 3.*{problem}"):
        run("other,1,1,1,,,,", line, head=ALL)
    assert PriceVersion.objects.count() == 1


def test_all_are_set_once_and_in_their_books(acme: Tenant) -> None:
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    lines = (
        "demo,0.15,0.015,0.60,,,,",
        "demo,0.10,0.01,0.50,0.0001,,acme,",
        "other,1,0.1,3.000,,,,",
        "other,2,0.2,4,,,,2100-01-01T00:00:00+01:00",
    )
    done = run(*lines, head=ALL, confirm=True)  # a price of hits is more than ten times none
    assert [(each.line, each.model_name, each.tenant, each.before is None) for each in done.changes] == [
        (3, "demo", "acme", True),
        (4, "other", "", True),
        (5, "other", "", False),
    ]
    assert done.unchanged == 1
    assert done.notes[0] == "There is no model demo yet; its price is for when there is one."
    assert done.changes[0].after == Rates(
        prompt_pico=100_000, cached_prompt_pico=10_000, completion_pico=500_000, prediction_hit_pico=10**8
    )
    assert AuditEntry.objects.filter(action="price.set").count() == 4
    again = run(*lines, head=ALL)
    assert (again.changes, again.unchanged) == ([], 4)


def test_requests_and_priorities_have_columns_that_may_be_left_out(db: None) -> None:
    head = f"{HEAD},request_each,low_priority_percent,high_priority_percent"
    done = run("demo,0.15,0.015,0.60,0.000001,80,", "other,1,1,1,,,112.5", head=head)
    assert [each.after for each in done.changes] == [
        replace(DEMO_RATES, request_pico=10**6, low_priority_bp=8_000),
        Rates(prompt_pico=10**6, cached_prompt_pico=10**6, completion_pico=10**6, high_priority_bp=11_250),
    ]
    again = price_file.read("\n".join(",".join(row) for row in price_file.in_force()))
    assert price_file.apply(SYSTEM, again, confirm=False, dry_run=False).unchanged == 2


def test_classes_with_a_price_of_their_own_have_columns_too(db: None) -> None:
    head = f"{HEAD},cache_write_per_million,reasoning_per_million"
    done = run("demo,0.15,0.015,0.60,0.1875,", "other,1,1,1,,0", head=head)
    assert [each.after for each in done.changes] == [
        replace(DEMO_RATES, cache_write_pico=187_500),
        Rates(prompt_pico=10**6, cached_prompt_pico=10**6, completion_pico=10**6, reasoning_pico=0),
    ]
    again = price_file.read("\n".join(",".join(row) for row in price_file.in_force()))
    assert price_file.apply(SYSTEM, again, confirm=False, dry_run=False).unchanged == 2
    with pytest.raises(BadPriceFile, match="reasoning_pico from 600000 to 0 pico, more than tenfold"):
        run("demo,0.15,0.015,0.60,,0", head=head)


def test_a_preview_is_refused_for_what_setting_is_refused_for(acme: Tenant) -> None:
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    year = timezone.now().year + 1
    files = (
        ("demo,1.51,0.015,0.60,,,,",),
        ("demo,0.001,0.015,0.60,,,acme,",),
        ("demo,0.15,0.015,0.61,,,,2020-01-01T00:00:00Z",),
        ("demo,150000,0.015,0.60,,,,",),
        (f"other,1,1,1,,,,{year}-01-01T00:00:00Z", f"other,1,1,20,,,,{year}-02-01T00:00:00Z"),
        (f"other,1,1,1,,,,{year}-02-01T00:00:00Z", f"other,1,1,20,,,acme,{year}-03-01T00:00:00Z"),
        (f"other,1,1,20,,,acme,{year}-03-01T00:00:00Z", f"other,1,1,1,,,,{year}-02-01T00:00:00Z"),
        ("demo,0.15,0.015,0.60,,,,", "demo,0.2,0.02,0.7,,,acme,"),
    )
    outcomes = []
    for lines in files:
        both: list[tuple[Any, Any]] = []
        for dry_run in (True, False):
            undo = transaction.savepoint()
            try:
                done = run(*lines, head=ALL, dry_run=dry_run)
                both.append((done.unchanged, [(each.line, each.before, each.after) for each in done.changes]))
            except BadPriceFile as error:
                both.append((str(error).partition(", before")[0], error.is_jump))
            transaction.savepoint_rollback(undo)
        assert both[0] == both[1]
        outcomes.append(isinstance(both[0][0], str))
    assert outcomes == [True, True, True, True, True, True, False, False]


def test_a_jump_is_set_once_it_is_confirmed(db: None) -> None:
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    with pytest.raises(BadPriceFile) as refused:
        run("demo,15,0.015,0.60")
    assert refused.value.is_jump
    assert len(run("demo,15,0.015,0.60", confirm=True).changes) == 1


def test_what_is_exported_changes_nothing(acme: Tenant) -> None:
    run("demo,0.15,0.015,0.60,0.000001,0,,", "demo,0.1,0.01,0.5,,,acme,", "other,1,0.1,3,,,,", head=ALL, confirm=True)
    text = io.StringIO()
    csv.writer(text).writerows(price_file.in_force())
    done = price_file.apply(SYSTEM, price_file.read(text.getvalue()), confirm=False, dry_run=False)
    assert (done.changes, done.unchanged) == ([], 3)


def test_a_preview_has_each_tenants_last_month_at_its_new_prices_and_sets_none(acme: Tenant) -> None:
    globex = Tenant.objects.create(slug="globex", name="Globex")
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    now = timezone.now()
    last = now.replace(day=1) - timedelta(days=9)
    price_from(last - timedelta(days=40), DEMO_RATES)
    for tenant in (acme, globex):
        store(row_at(last, TenantId(tenant.id), tokens=(100, 0, 10)), row_at(last, TenantId(tenant.id), model_name="x"))
    assign_from(
        last.date().replace(day=1), globex, plan_from(last.date().replace(day=1), {"discounts": [{"percent": 50}]})
    )
    with CaptureQueriesContext(connection) as sent:
        done = run("demo,0.30,0.03,1.20,,,,", "demo,0.20,0.02,0.60,,,acme,", head=ALL, dry_run=True)
    assert all(query["sql"].startswith("SELECT ") and "lock" not in query["sql"] for query in sent)  # no drain waits
    seen = previews.of_prices(done.table, {"demo"}, done.latest, previews.billed_tenants(now), now)
    was = 100 * 150_000 + 10 * 600_000
    figures = {each.month.tenant.slug: (each.was, each.would_be, each.problem) for each in seen}
    assert {slug: (a and a.amount_pico, b and b.amount_pico, c) for slug, (a, b, c) in figures.items()} == {
        "acme": (was, 100 * 200_000 + 10 * 600_000, ""),
        "globex": (was // 2, was, ""),
    }
    assert PriceVersion.objects.count() == 1 and not AuditEntry.objects.exists()
    assert replace(done.changes[0], line=0).before == DEMO_RATES


def test_a_preview_counts_requests_and_priorities_that_had_no_price_of_their_own(acme: Tenant) -> None:
    now = timezone.now()
    last = now.replace(day=1) - timedelta(days=9)
    price_from(last - timedelta(days=40), DEMO_RATES)
    plain = row_at(last, TenantId(acme.id), tokens=(100, 0, 0))
    store(plain, replace_field(row_at(last, TenantId(acme.id), tokens=(10, 0, 0)), priority="high"))
    head = f"{HEAD},request_each,high_priority_percent"
    done = run("demo,0.15,0.015,0.60,0.000001,200", head=head, confirm=True, dry_run=True)
    [seen] = previews.of_prices(done.table, {"demo"}, done.latest, [acme], now)
    assert seen.was is not None and seen.would_be is not None
    assert seen.was.amount_pico == 110 * 150_000
    assert seen.would_be.amount_pico == 100 * 150_000 + 10 * 300_000 + 1_000_000 + 2_000_000
    assert [line.token_class for line in seen.was.lines] == ["prompt"]


def test_the_example_of_the_documentation_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "billing.md").read_text()
    rows = price_file.read(page.split("```csv prices\n")[1].split("```")[0])
    assert [(row.model_name, row.tenant, row.rates.prompt_pico) for row in rows] == [
        ("tiny-chat", "", 150_000),
        ("big-chat", "", 1_000_000),
        ("big-chat", "acme", 900_000),
    ]

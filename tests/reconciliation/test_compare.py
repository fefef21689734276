"""Comparisons over usage that the drain stored, with the counters that an agent wrote."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import asdict
from uuid import UUID

import msgspec
import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from billing.ledger import ledger, partitions
from billing.ledger.ledger import Posting
from billing.ledger.usage_rows import UsageRow
from billing.models import BootUsage, LedgerEntry, MonthLine, UsageRecord, UsageRollup
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports.statements import Month
from reconciliation import boots, closed_months, report, run, tasks
from reconciliation.models import BookGap, BootResult, Comparison
from tenants.audit import SYSTEM, Actor
from tenants.ids import TenantId, new_id
from tenants.models import Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.conftest import sums
from tests.billing.usage_records import price_from, row_at, store
from tests.workers.conftest import Fleet
from workers.models import EngineBoot, Replica

pytestmark = pytest.mark.django_db

NOW = dt.timedelta(0)
ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
ACME = TenantId(new_id())


@pytest.fixture
def boot(fleet: Fleet, demo_prices: None) -> EngineBoot:
    """An engine process that ended in order an hour ago, without a request."""
    replica = Replica.objects.create(deployment=fleet.deploy(1), revision=fleet.revision, node=fleet.node)
    ended = timezone.now() - dt.timedelta(hours=1)
    return EngineBoot.objects.create(
        replica=replica,
        generation=3,
        started_at=ended - dt.timedelta(hours=1),
        ended_at=ended,
        counted_at=ended,
        end="orderly",
        cached_prompt_tokens=0,
    )


def request(boot: EngineBoot, tokens: tuple[int, int, int] = (30, 10, 7), **changes: object) -> UsageRow:
    """Store a request that the process served, and return its row."""
    assert boot.ended_at is not None
    began = boot.ended_at - dt.timedelta(minutes=10)
    facts = {"replica_id": boot.replica_id, "replica_generation": boot.generation, "finished_at": began, **changes}
    row = msgspec.structs.replace(row_at(began, ACME, tokens=tokens), **facts)
    store(row)
    return row


def counted(boot: EngineBoot, **counters: int | str) -> None:
    EngineBoot.objects.filter(id=boot.id).update(**counters)


def result(boot: EngineBoot) -> BootResult:
    """Compare, and return what was found."""
    run.compare()
    return BootResult.objects.get(boot=boot)


def test_a_boot_whose_counters_equal_usage_of_all_purposes_is_equal(boot: EngineBoot) -> None:
    request(boot)
    request(boot, (1, 0, 1), purpose="canary")
    request(boot, (0, 0, 0), state="refused")
    request(boot, (5, 0, 8), sequences=4, prompt_copies=4)
    counted(boot, prompt_tokens=61, cached_prompt_tokens=25, completion_tokens=16, finished_sequences=6)
    found = result(boot)
    assert (found.state, found.gap_tokens, found.note) == ("equal", 0, "")
    (document,) = report.read(show_all=True).boots
    assert document.by_purpose == {"tenant": 75, "canary": 2}
    assert document.used_tokens == document.counted_tokens == 77


def test_a_gap_says_which_boot_how_many_tokens_and_which_requests(boot: EngineBoot) -> None:
    row = request(boot)
    counted(boot, prompt_tokens=41, cached_prompt_tokens=10, completion_tokens=7, finished_sequences=1)
    found = result(boot)
    assert (found.state, found.gap_tokens) == ("gap", 1)
    (document,) = report.read().boots
    assert document.candidates == (str(row.id),)
    assert document.note == "the engine counted, beyond usage: +1 prompt tokens"
    request(boot, (1, 0, 0), state="complete", sequences=0)
    assert result(boot).state == "equal", "usage that arrives late closes it"


def test_a_request_that_its_client_left_is_bounded(boot: EngineBoot) -> None:
    request(boot, (40, 0, 3), state="client_gone", tokens_source="streamed")
    counted(boot, prompt_tokens=38, completion_tokens=9)
    found = result(boot)
    assert (found.state, found.unattributed_tokens, found.allowed_tokens) == ("bounded", 47, 2048)


def test_what_a_killed_boot_did_for_nobody_is_in_the_books_once_and_never_billed(boot: EngineBoot) -> None:
    request(boot)
    request(boot, (20, 0, 3), state="interrupted", tokens_source="estimated")
    counted(boot, end="killed", prompt_tokens=75, cached_prompt_tokens=10, completion_tokens=15, finished_sequences=1)
    before = sums()
    found = result(boot)
    assert (found.state, found.lost_tokens) == ("lost", 20)
    assert result(boot).lost_tokens == 20
    lost = UsageRecord.objects.get(purpose="lost")
    assert (lost.prompt_tokens, lost.completion_tokens, lost.amount_pico) == (15, 5, 0)
    assert (lost.replica_id, lost.replica_generation) == (boot.replica_id, 3)
    assert sums() == before
    usage = BootUsage.objects.filter(replica_id=boot.replica_id)
    assert sum(each.prompt_tokens + each.cut_prompt_tokens for each in usage) == 75
    assert sum(each.completion_tokens + each.cut_completion_tokens for each in usage) == 15


def test_rows_that_ended_after_the_last_scrape_of_a_killed_boot_are_no_gap(boot: EngineBoot) -> None:
    assert boot.ended_at is not None
    request(boot, finished_at=boot.ended_at - dt.timedelta(seconds=2))
    counted(boot, end="killed", counted_at=boot.ended_at - dt.timedelta(seconds=3))  # type: ignore[arg-type]
    assert result(boot).state == "equal"
    request(boot, (1, 0, 0))
    assert result(boot).state == "gap"


def test_a_boot_that_ended_just_now_or_before_its_counters_were_kept_is_not_judged(boot: EngineBoot) -> None:
    request(boot)
    EngineBoot.objects.filter(id=boot.id).update(ended_at=timezone.now())
    assert result(boot).state == "settling"
    EngineBoot.objects.filter(id=boot.id).update(whole=False)
    assert result(boot).state == "partial"


def test_a_running_boot_is_judged_from_one_comparison_to_the_next(boot: EngineBoot) -> None:
    row = request(boot)
    EngineBoot.objects.filter(id=boot.id).update(
        ended_at=None, end="", counted_at=timezone.now(), prompt_tokens=40, completion_tokens=7
    )
    assert result(boot).state == "running"
    an_hour_ago = timezone.now() - dt.timedelta(hours=1)
    BootResult.objects.filter(boot=boot).update(marked_at=an_hour_ago)
    assert result(boot).state == "running"
    store(msgspec.structs.replace(row, id=row_at(an_hour_ago, ACME).id))
    run.compare()
    BootResult.objects.filter(boot=boot).update(marked_at=an_hour_ago, marked_used_tokens=94)
    found = result(boot)
    assert (found.state, found.gap_tokens) == ("gap", -47)


def test_usage_ledger_and_rollups_of_a_month_are_equal_to_the_pico(boot: EngineBoot) -> None:
    request(boot)
    partitions.ensure()
    done = run.compare()
    assert (done.books, done.book_gaps) == (2, 0)
    UsageRollup.objects.update(completion_tokens=8)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_ledgerentry DISABLE TRIGGER USER")
    LedgerEntry.objects.filter(account__kind="receivable").update(amount_pico=1)
    run.compare()
    ledger, rollups = BookGap.objects.filter(book__in=("ledger", "roll-ups")).order_by("book")
    assert BookGap.objects.filter(book="balanced").exists()
    assert (int(ledger.book_pico), rollups.usage_tokens, rollups.book_tokens) == (1, 47, 48)
    assert {each.tenant_id for each in (ledger, rollups)} == {ACME}


def test_a_closed_month_equals_the_ledger_and_a_changed_line_is_a_gap() -> None:
    acme = Tenant.objects.create(slug="acme", name="Acme", created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    march = dt.datetime(2026, 3, 16, 12, 0, tzinfo=dt.UTC)
    later = march + dt.timedelta(days=60)
    price_from(march - dt.timedelta(days=30), DEMO_RATES)
    store(row_at(march, TenantId(acme.id)))
    closing.close(SYSTEM, Month(tenant=acme, year=2026, month=3))
    store(row_at(march, TenantId(acme.id)))
    closing.close(SYSTEM, Month(tenant=acme, year=2026, month=4))
    assert (closed_months.compare(later), BookGap.objects.count()) == (2, 0)
    assert closed_months.compare(later + dt.timedelta(days=90), None) == 0
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_monthline DISABLE TRIGGER USER")
    line = MonthLine.objects.filter(closing__month=4).order_by("position")[0]
    MonthLine.objects.filter(id=line.id).update(
        quantity=line.quantity + 1, amount_pico=F("amount_pico") + line.unit_price_pico
    )
    closed_months.compare(later)
    gap = BookGap.objects.get()
    assert (gap.month, gap.book, int(gap.book_pico - gap.usage_pico)) == (
        "2026-04",
        "closed month",
        line.unit_price_pico,
    )
    assert report.read().books[0].tenant == "acme"


def test_a_closed_month_with_terms_equals_the_ledger_and_a_posting_without_a_line_is_a_gap() -> None:
    acme = Tenant.objects.create(slug="acme", name="Acme", created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    march = dt.datetime(2026, 3, 16, 12, 0, tzinfo=dt.UTC)
    later, month = march + dt.timedelta(days=60), Month(tenant=acme, year=2026, month=3)
    price_from(march - dt.timedelta(days=30), DEMO_RATES)
    store(row_at(march, TenantId(acme.id)))
    first = dt.date(2026, 3, 1)
    assign_from(first, acme, plan_from(first, {"discounts": [{"percent": 10}], "minimum": "2.00"}))
    closing.close(SYSTEM, month)
    reopening.request(ADA, month, "a wrong discount")
    reopening.confirm(EVE, month)
    closed, _ = closing.close(SYSTEM, month)
    assert closed.terms_lines.count() == 2
    assert (closed_months.compare(later), BookGap.objects.count()) == (1, 0)
    stray = Posting(tenant_id=acme.id, currency="USD", amount_pico=7, terms=f"{closed.id}:9")
    ledger.post([stray])
    closed_months.compare(later)
    gap = BookGap.objects.get()
    assert (gap.month, gap.book, int(gap.usage_pico - gap.book_pico)) == ("2026-03", "closed month", 7)


def test_a_tick_that_follows_another_compares_nothing(boot: EngineBoot) -> None:
    assert tasks.compare() == 0
    assert tasks.compare() == 0
    assert Comparison.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_comparisons_at_once_record_a_loss_once(boot: EngineBoot) -> None:
    request(boot, (20, 0, 3), state="interrupted", tokens_source="estimated")
    counted(boot, end="killed", prompt_tokens=25, completion_tokens=15)
    failures: list[BaseException] = []

    def compare() -> None:
        try:
            boots.compare()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=compare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert UsageRecord.objects.filter(purpose="lost").count() == 1


def test_a_report_is_json(boot: EngineBoot) -> None:
    request(boot)
    run.compare()
    assert UUID(asdict(report.read())["boots"][0]["replica_id"]) == boot.replica_id

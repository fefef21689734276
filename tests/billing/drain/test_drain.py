"""The drain: each request becomes one row, one charge and part of one sum, whatever crashes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone
from msgspec.structs import replace

from billing.drain import batch
from billing.drain.drain import Drain
from billing.drain.lag import backlog
from billing.errors import WalDirectoryBusy
from billing.models import BypassRollup, LedgerTransaction, UsageRecord, UsageRollup, WalOffset
from billing.pricing.prices import DEMO_RATES, ensure_demo_prices
from billing.wal.records import Progress
from billing.wal.segments import segments
from billing.wal.writer import WalWriter
from tenants.audit import SYSTEM
from tenants.ids import RequestId, new_id
from tests.billing.conftest import Sums, sums
from tests.billing.wal_records import end, start

#: Price of 30 uncached and 10 cached prompt tokens and 7 completion tokens, at demo prices.
AMOUNT_PICO = 30 * 150_000 + 10 * 15_000 + 7 * 600_000
#: Price of 40 estimated prompt tokens and 5 streamed ones.
INTERRUPTED_PICO = 40 * 150_000 + 5 * 600_000


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WalWriter]:
    opened = WalWriter(tmp_path, "gateway")
    yield opened
    opened.close()


@pytest.fixture
def drain(tmp_path: Path, db: None) -> Iterator[Drain]:
    opened = Drain(tmp_path, "here")
    yield opened
    opened.close()


def drained(drain: Drain) -> None:
    while drain.step():
        pass


def equal(pico: int) -> Sums:
    return Sums(usage_pico=pico, rollup_pico=pico, ledger_pico=pico)


@pytest.mark.usefixtures("demo_prices")
def test_a_request_becomes_a_row_a_roll_up_and_a_posting(writer: WalWriter, drain: Drain) -> None:
    begun = start(client_request_id="theirs")
    writer.append(begun)
    drained(drain)
    assert not UsageRecord.objects.exists()
    finished = end(begun.request_id)
    writer.append(finished)
    drained(drain)
    row = UsageRecord.objects.get()
    assert (row.id, row.tenant_id, row.project_id, row.key_id) == (
        begun.request_id,
        begun.tenant_id,
        begun.project_id,
        begun.key_id,
    )
    assert (row.prompt_tokens, row.cached_prompt_tokens, row.completion_tokens) == (30, 10, 7)
    assert (row.state, row.tokens_source, row.client_request_id) == ("complete", "engine", "theirs")
    assert row.started_at.timestamp() == pytest.approx(begun.started_at_ns / 1e9, abs=2e-6)
    assert row.saved_prefix_pico == 10 * (DEMO_RATES.prompt_pico - DEMO_RATES.cached_prompt_pico)
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.errors, rollup.prefix_hits, rollup.prediction_hits) == (1, 0, 1, 0)
    posting = LedgerTransaction.objects.get()
    assert posting.usage_ids == [begun.request_id]
    assert sorted(posting.entries.values_list("amount_pico", flat=True)) == [-AMOUNT_PICO, AMOUNT_PICO]
    assert sums() == equal(AMOUNT_PICO)


def test_what_routing_expected_reaches_its_row(writer: WalWriter, drain: Drain) -> None:
    ended = end(start().request_id)
    expected = {"predicted_cached_tokens": 9, "nearest_warm_tokens": 11, "diverged_message": 3}
    for each in (ended, replace(ended, **expected)):
        begun = start()
        writer.append(begun, replace(each, request_id=begun.request_id))
    drained(drain)
    assert list(UsageRecord.objects.order_by("id").values_list(*expected)) == [(None, None, None), (9, 11, 3)]


@pytest.mark.usefixtures("demo_prices")
def test_a_prediction_hit_is_free_and_its_saving_is_shown_apart(writer: WalWriter, drain: Drain) -> None:
    begun = start()
    writer.append(begun, end(begun.request_id, cache_result="hit", tokens=(0, 0, 0), avoided=(40, 10, 7)))
    drained(drain)
    row = UsageRecord.objects.get()
    saved = AMOUNT_PICO + 10 * DEMO_RATES.prompt_pico
    assert (row.amount_pico, row.saved_prediction_pico, row.saved_prefix_pico) == (0, saved, 0)
    rollup = UsageRollup.objects.get()
    assert (rollup.prediction_hits, rollup.avoided_tokens, int(rollup.saved_prediction_pico)) == (1, 57, saved)
    assert not LedgerTransaction.objects.exists()


@pytest.mark.usefixtures("demo_prices")
def test_what_a_record_says_was_avoided_reaches_its_row_and_its_roll_up(writer: WalWriter, drain: Drain) -> None:
    begun, source = start(), RequestId(new_id())
    told = end(begun.request_id, cache_result="coalesced", tokens=(0, 0, 0), avoided=(30, 10, 7))
    writer.append(begun, replace(told, avoided_engine_ms=812.6, source_id=source))
    drained(drain)
    row, rollup = UsageRecord.objects.get(), UsageRollup.objects.get()
    assert (row.avoided_prompt_tokens, row.avoided_cached_prompt_tokens, row.avoided_completion_tokens) == (30, 10, 7)
    assert (row.avoided_engine_ms, row.source_id) == (812.6, source)
    assert (row.amount_pico, row.saved_prediction_pico, row.saved_prefix_pico) == (0, AMOUNT_PICO, 0)
    assert (rollup.key_id, rollup.prediction_hits, rollup.coalesced_requests) == (begun.key_id, 0, 1)
    assert (rollup.avoided_tokens, rollup.avoided_engine_ms) == (47, 813)
    assert int(rollup.saved_prediction_pico) == AMOUNT_PICO


@pytest.mark.usefixtures("demo_prices")
def test_bypasses_are_counted_by_their_reason(writer: WalWriter, drain: Drain) -> None:
    for reason in ("sampled", "sampled", "off"):
        begun = start()
        writer.append(begun, replace(end(begun.request_id, cache_result="bypass"), cache_reason=reason))
        drained(drain)
    assert dict(BypassRollup.objects.values_list("reason", "requests")) == {"sampled": 2, "off": 1}
    assert UsageRollup.objects.get().bypassed_requests == 3


@pytest.mark.usefixtures("demo_prices")
def test_an_engine_error_before_the_first_token_costs_nothing_by_decision(writer: WalWriter, drain: Drain) -> None:
    begun = start()
    writer.append(begun, end(begun.request_id, state="engine_error", tokens=(30, 0, 0)))
    drained(drain)
    row = UsageRecord.objects.get()
    assert row.amount_pico == 0
    assert row.price_version_id is not None
    assert UsageRollup.objects.get().errors == 1


@pytest.mark.usefixtures("demo_prices")
def test_canaries_are_rated_but_nobody_owes_them(writer: WalWriter, drain: Drain) -> None:
    begun = start(purpose="canary")
    writer.append(begun, end(begun.request_id))
    drained(drain)
    assert UsageRecord.objects.get().amount_pico == AMOUNT_PICO
    assert not LedgerTransaction.objects.exists()
    assert not UsageRollup.objects.exists()


def test_usage_without_a_price_waits_unrated_and_is_charged_the_first_there_is(writer: WalWriter, drain: Drain) -> None:
    early, unknown = start(), start(model_name="never priced")
    writer.append(early, end(early.request_id), unknown, end(unknown.request_id))
    drained(drain)
    assert set(UsageRecord.objects.values_list("amount_pico", "price_version_id")) == {(None, None)}
    assert [rollup.requests for rollup in UsageRollup.objects.all()] == [1, 1]
    assert batch.rate_unrated() == 0
    ensure_demo_prices(SYSTEM, "demo")
    assert batch.rate_unrated() == 1
    assert batch.rate_unrated() == 0
    assert sums() == equal(AMOUNT_PICO)
    assert UsageRecord.objects.get(amount_pico=None).model_name == "never priced"
    assert sorted(rollup.requests for rollup in UsageRollup.objects.all()) == [1, 1]


@pytest.mark.usefixtures("demo_prices")
def test_a_request_of_a_dead_writer_is_charged_for_what_was_streamed(writer: WalWriter, drain: Drain) -> None:
    streamed, silent = start(), start()
    writer.append(streamed, silent)
    writer.append(Progress(request_id=streamed.request_id, completion_tokens=5, at_ns=time.time_ns()))
    drained(drain)
    assert not UsageRecord.objects.exists(), "its writer lives"
    writer.close()
    drained(drain)
    row = UsageRecord.objects.get(id=streamed.request_id)
    assert (row.state, row.tokens_source, row.http_status) == ("interrupted", "estimated", 0)
    assert (row.prompt_tokens, row.completion_tokens, row.amount_pico) == (40, 5, INTERRUPTED_PICO)
    assert UsageRecord.objects.get(id=silent.request_id).amount_pico == 0
    assert sums() == equal(INTERRUPTED_PICO)


@pytest.mark.usefixtures("demo_prices")
def test_a_dead_writers_files_and_position_go_once_all_is_stored(
    writer: WalWriter, drain: Drain, tmp_path: Path
) -> None:
    begun = start()
    writer.append(begun, end(begun.request_id))
    drained(drain)
    assert WalOffset.objects.count() == 1
    writer.close()
    drained(drain)
    assert [path.name for path in tmp_path.iterdir()] == ["drain.lock"]
    assert not WalOffset.objects.exists()


@pytest.mark.usefixtures("demo_prices")
def test_a_drain_that_has_stored_all_says_from_before_when(
    writer: WalWriter, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.drain.drain.CAUGHT_UP_SECONDS", 0.0)
    monkeypatch.setattr("billing.drain.drain.BATCH_ROWS", 1)
    for _ in range(2):
        begun = start()
        writer.append(begun, end(begun.request_id))
    before = timezone.now()
    assert drain.step()
    assert WalOffset.objects.get().caught_up_at is None  # there may be more
    drained(drain)
    caught_up_at = WalOffset.objects.get().caught_up_at
    assert caught_up_at is not None and before < caught_up_at <= timezone.now()


@pytest.mark.usefixtures("demo_prices")
def test_a_segment_goes_while_a_request_begun_in_it_is_open_and_its_end_still_counts(tmp_path: Path) -> None:
    drain = Drain(tmp_path, "here")
    writer = WalWriter(tmp_path, "gateway", segment_bytes=2000)
    slow = start()
    writer.append(slow)
    for _ in range(20):
        quick = start()
        writer.append(quick, end(quick.request_id))
    drained(drain)
    kept = segments(tmp_path)
    assert kept[0].number == kept[-1].number > 1
    drain.close()
    again = Drain(tmp_path, "here")
    writer.append(end(slow.request_id))
    drained(again)
    assert segments(tmp_path) == kept
    assert UsageRecord.objects.count() == 21
    assert sums() == equal(21 * AMOUNT_PICO)
    writer.close()
    again.close()


@pytest.mark.usefixtures("demo_prices")
def test_a_log_read_twice_adds_nothing(writer: WalWriter, tmp_path: Path) -> None:
    drain = Drain(tmp_path, "here")
    for _ in range(10):
        begun = start()
        writer.append(begun, end(begun.request_id))
    drained(drain)
    WalOffset.objects.all().delete()
    drain.close()
    again = Drain(tmp_path, "here")
    drained(again)
    again.close()
    assert UsageRecord.objects.count() == 10
    assert sums() == equal(10 * AMOUNT_PICO)
    assert UsageRollup.objects.get().requests == 10


@pytest.mark.usefixtures("demo_prices")
def test_damage_costs_its_record_only_is_told_loudly_and_kept(
    writer: WalWriter, drain: Drain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [start() for _ in range(5)]
    ends = []
    for begun in requests:
        writer.append(begun)
        (segment,) = segments(tmp_path)
        ends.append(segment.path.stat().st_size)
        writer.append(end(begun.request_id))
    writer.close()
    content = bytearray(segment.path.read_bytes())
    content[ends[2] + 20] ^= 1  # inside the END of the third
    segment.path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        drained(drain)
    assert "is damaged from byte" in caplog.text
    states = {row.id: row.state for row in UsageRecord.objects.all()}
    assert states == {begun.request_id: "interrupted" if begun is requests[2] else "complete" for begun in requests}
    assert segment.path.with_suffix(".damaged").exists()


@pytest.mark.usefixtures("demo_prices")
def test_what_no_table_takes_is_set_aside_and_blocks_nothing(writer: WalWriter, drain: Drain, tmp_path: Path) -> None:
    first, refused, last = start(), start(), start()
    writer.append(first, end(first.request_id), refused, end(refused.request_id), last, end(last.request_id))
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE billing_usagerecord ADD CONSTRAINT refuses CHECK (id <> '{refused.request_id}') NOT VALID"
        )
    drained(drain)
    assert set(UsageRecord.objects.values_list("id", flat=True)) == {first.request_id, last.request_id}
    assert str(refused.request_id) in (tmp_path / "refused.jsonl").read_text()
    assert sums() == equal(2 * AMOUNT_PICO)


@pytest.mark.usefixtures("demo_prices")
def test_what_a_client_sends_fits_its_column(writer: WalWriter, drain: Drain) -> None:
    begun = start(client_request_id="\0" + "ж" * 500)
    writer.append(begun, end(begun.request_id))
    drained(drain)
    assert UsageRecord.objects.get().client_request_id == "ж" * 200


@pytest.mark.usefixtures("db")
def test_a_directory_has_one_drain(drain: Drain, tmp_path: Path) -> None:
    with pytest.raises(WalDirectoryBusy):
        Drain(tmp_path, "here")


def test_the_backlog_says_how_much_is_not_stored(writer: WalWriter, drain: Drain, tmp_path: Path) -> None:
    assert backlog(tmp_path / "missing").segments == 0
    begun = start()
    writer.append(begun)
    behind = backlog(tmp_path)
    (segment,) = segments(tmp_path)
    assert (behind.segments, behind.bytes) == (1, segment.path.stat().st_size - 32)
    assert 0 < behind.records_lag_seconds < 60
    drained(drain)
    assert (backlog(tmp_path).bytes, backlog(tmp_path).records_lag_seconds) == (0, 0.0)

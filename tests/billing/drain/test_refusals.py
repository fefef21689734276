"""Requests that did not run: rows that cost nothing, counted apart from the platform's errors."""

from __future__ import annotations

from zlib import crc32

import msgspec
import pytest
from msgspec.structs import replace

from billing.drain import batch
from billing.drain.drain import Drain
from billing.models import UsageRecord, UsageRollup
from billing.wal.records import Record, State, encode
from billing.wal.segments import FRAME, segments
from billing.wal.writer import WalWriter
from tests.billing.conftest import Sums, sums
from tests.billing.drain.test_drain import AMOUNT_PICO, drain, drained, equal, writer
from tests.billing.wal_records import end, start

__all__ = ["drain", "writer"]

#: Fields of an END that the release before did not write.
NEW_FIELDS = 3


def refused(writer: WalWriter, status: int, refusals: int, state: State = "refused") -> None:
    """Write a request that did not run, for a model without a price."""
    begun = start(model_name="")
    ended = replace(
        end(begun.request_id, state=state, tokens=(0, 0, 0)),
        http_status=status,
        error_code="rate_limit_exceeded",
        error_message="Too many requests.\0",
        refusals=refusals,
    )
    writer.append(begun, ended)


def test_a_refusal_has_its_error_on_record_and_costs_nothing_without_a_price(writer: WalWriter, drain: Drain) -> None:
    refused(writer, 429, 37)
    drained(drain)
    row = UsageRecord.objects.get()
    assert (row.error_code, row.error_message, row.refusals) == ("rate_limit_exceeded", "Too many requests.", 37)
    assert (row.amount_pico, row.price_version_id) == (0, None)
    assert batch.rate_unrated() == 0
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.errors, rollup.refused_requests) == (0, 0, 37)
    assert sums() == equal(0)


def test_a_failure_before_any_engine_ran_is_a_request_and_an_error_of_the_platform(
    writer: WalWriter, drain: Drain
) -> None:
    refused(writer, 503, 2, "engine_error")
    drained(drain)
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.errors, rollup.refused_requests) == (2, 2, 0)


@pytest.mark.parametrize(
    ("state", "status", "errors", "refusals"),
    [
        ("refused", 400, 0, 1),
        ("refused", 200, 0, 1),
        ("client_gone", 499, 0, 0),
        ("engine_error", 200, 1, 0),
        ("engine_error", 502, 1, 0),
    ],
)
def test_only_failures_of_the_platform_are_errors(
    writer: WalWriter, drain: Drain, state: State, status: int, errors: int, refusals: int
) -> None:
    begun = start()
    writer.append(begun, replace(end(begun.request_id, state=state), http_status=status))
    drained(drain)
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.errors, rollup.refused_requests) == (1, errors, refusals)


@pytest.mark.usefixtures("demo_prices")
def test_a_log_of_the_release_before_is_drained(writer: WalWriter, drain: Drain) -> None:
    begun = start()
    (segment,) = segments(drain._directory)
    with segment.path.open("ab") as file:
        file.write(_frame(begun, 0) + _frame(end(begun.request_id), NEW_FIELDS))
    drained(drain)
    row = UsageRecord.objects.get()
    assert (row.amount_pico, row.error_code, row.error_message, row.refusals) == (AMOUNT_PICO, "", "", 0)
    assert sums() == Sums(usage_pico=AMOUNT_PICO, rollup_pico=AMOUNT_PICO, ledger_pico=AMOUNT_PICO)


def _frame(record: Record, without: int) -> bytes:
    """Return a record's frame without its last fields."""
    fields = msgspec.msgpack.decode(encode(record))
    payload = msgspec.msgpack.encode(fields[: len(fields) - without])
    return FRAME.pack(len(payload), crc32(payload)) + payload

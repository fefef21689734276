"""What a usage row says of how a response was written."""

from __future__ import annotations

import msgspec
import pytest
from django.db import IntegrityError, transaction

from billing.ledger.usage_rows import finished
from billing.models import UsageRecord
from billing.wal.records import decode, encode
from tests.billing.usage_records import store
from tests.billing.wal_records import end, start


@pytest.mark.parametrize(
    ("stream", "completion", "ttft_ms", "tpot_ms"),
    [
        (True, 7, 12.5, 11.25),  # (80 - 12.5) / 6
        (True, 1, 12.5, None),
        (True, 0, None, None),
        (False, 7, None, None),
        (True, 3, 90.0, 0.0),  # the clock's resolution
    ],
)
def test_the_time_per_token_begins_after_the_first_of_a_stream(
    stream: bool, completion: int, ttft_ms: float | None, tpot_ms: float | None
) -> None:
    begun = msgspec.structs.replace(start(), stream=stream)
    ended = msgspec.structs.replace(end(begun.request_id, tokens=(30, 10, completion)), ttft_ms=ttft_ms)
    assert finished(begun, ended).tpot_ms == tpot_ms


def test_an_engines_own_word_for_an_end_fits_its_column() -> None:
    begun = start()
    ended = msgspec.structs.replace(end(begun.request_id), finish_reason="repetition" * 10)
    assert finished(begun, ended).finish_reason == ("repetition" * 10)[:32]


@pytest.mark.django_db
def test_tags_of_any_log_fit_their_column() -> None:
    sent = {f"{number}\0{'k' * 99}": "a\0" + "v" * 99 for number in range(9)}
    begun = msgspec.structs.replace(start(), tags=sent)
    row = finished(begun, end(begun.request_id))
    store(row)
    assert UsageRecord.objects.get(id=row.id).tags == {f"{number}{'k' * 63}": "a" + "v" * 63 for number in range(8)}


def test_a_start_of_an_earlier_release_has_no_tags_and_no_end_user() -> None:
    begun = msgspec.structs.replace(start(), tags={"app": "search"}, end_user="anna")
    fields = msgspec.msgpack.decode(encode(begun))
    assert decode(encode(begun)) == begun
    assert decode(msgspec.msgpack.encode(fields[:-1])) == msgspec.structs.replace(begun, end_user="")
    assert decode(msgspec.msgpack.encode(fields[:-2])) == msgspec.structs.replace(begun, tags={}, end_user="")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_write_tokens": 31},
        {"reasoning_tokens": 8},
        {"reported_prompt_tokens": 39},
        {"reported_completion_tokens": 8},
    ],
)
def test_classes_that_are_not_what_the_engine_reported_are_refused(wrong: dict[str, int]) -> None:
    whole = {"cache_write_tokens": 30, "reasoning_tokens": 7, "reported_prompt_tokens": 40}
    begun = start()
    right = msgspec.structs.replace(end(begun.request_id), **whole, reported_completion_tokens=7)
    with pytest.raises(IntegrityError), transaction.atomic():
        store(finished(begun, msgspec.structs.replace(right, **wrong)))
    store(finished(begun, right))

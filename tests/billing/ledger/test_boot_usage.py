"""The sums of each engine process, in the units of its counters."""

from __future__ import annotations

import msgspec
import pytest
from django.forms import model_to_dict

from billing.drain import batch
from billing.ledger import usage_rows
from billing.ledger.usage_rows import UsageRow, finished
from billing.models import BootUsage
from tenants.ids import new_id
from tests.billing.usage_records import store
from tests.billing.wal_records import REPLICA, end, start

pytestmark = pytest.mark.django_db


def row(*, generation: int = 1, sequences: int = 1, copies: int = 1, **changes: object) -> UsageRow:
    begun = msgspec.structs.replace(start(), replica_generation=generation, sequences=sequences, prompt_copies=copies)
    ended = msgspec.structs.replace(end(begun.request_id), replica_id=REPLICA)
    return msgspec.structs.replace(finished(begun, ended), **changes)


def sums(generation: int = 1, purpose: str = "tenant") -> tuple[int, ...]:
    found = model_to_dict(BootUsage.objects.get(replica_id=REPLICA, generation=generation, purpose=purpose))
    return tuple(value for name, value in found.items() if name not in {"id", "replica_id", "generation", "purpose"})


def test_exact_rows_and_those_cut_short_are_summed_apart() -> None:
    store(row(), row(state="client_gone", tokens_source="streamed"), row(state="refused"), row(purpose="canary"))
    assert sums() == (2, 1, 40 + 40, 10 + 10, 7 + 7, 0, 1, 1, 40, 7)
    assert sums(purpose="canary") == (1, 1, 40, 10, 7, 0, 0, 0, 0, 0)


def test_a_prompt_counts_once_for_each_choice() -> None:
    store(row(sequences=6, copies=3))
    assert sums() == (1, 6, 120, 10, 7, 1, 0, 0, 0, 0)


def test_what_used_no_engine_or_names_no_process_is_in_no_sum() -> None:
    store(row(generation=0), row(replica_id=None))
    assert not BootUsage.objects.exists()


def test_a_row_counts_once_however_often_it_is_stored() -> None:
    once = row()
    store(once)
    assert batch.store([once, row(generation=2)], {}, node="here") == 1
    assert sums() == sums(generation=2)


def test_an_attempt_that_left_no_row_of_its_own_makes_the_same_row_at_each_reading() -> None:
    begun, writer = start(), new_id()
    first = usage_rows.attempt(begun, writer)
    assert first == usage_rows.attempt(begun, writer)
    assert usage_rows.attempt(begun, new_id()).id != first.id
    assert (first.id.version, first.purpose, first.source_id) == (7, "retry", begun.request_id)
    assert (first.prompt_tokens, first.completion_tokens) == (0, 0)
    assert usage_rows.moment_of(first.id) == usage_rows.moment_of(begun.request_id)

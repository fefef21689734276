"""What is equal, what is bounded, what is lost and what is a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciliation import verdict
from reconciliation.verdict import Counts, Evidence

AGREED = Evidence(
    counted=Counts(prompt=100, completion=50, sequences=5, cached=32),
    used=Counts(prompt=100, completion=50, sequences=5, cached=32),
    context_tokens=1000,
)


def test_counters_that_equal_usage_are_equal() -> None:
    assert verdict.of_orderly(AGREED) == verdict.Verdict(state="equal")
    assert verdict.of_killed(AGREED).state == "equal"


@pytest.mark.parametrize(
    ("used", "gap"),
    [
        (Counts(prompt=99, completion=50, sequences=5, cached=32), 1),
        (Counts(prompt=100, completion=51, sequences=5, cached=32), -1),
        (Counts(prompt=90, completion=60, sequences=5, cached=32), -10),
        (Counts(prompt=100, completion=50, sequences=4, cached=32), 0),
        (Counts(prompt=100, completion=50, sequences=5, cached=31), 0),
    ],
)
def test_one_token_or_request_too_many_or_too_few_is_a_gap(used: Counts, gap: int) -> None:
    found = verdict.of_orderly(replace(AGREED, used=used))
    assert (found.state, found.gap_tokens) == ("gap", gap)
    assert "the engine counted, beyond usage" in found.note


def test_cached_tokens_are_not_compared_where_engines_do_not_report_them() -> None:
    assert verdict.of_orderly(replace(AGREED, used=replace(AGREED.used, cached=None))).state == "equal"
    assert verdict.of_orderly(replace(AGREED, counted=replace(AGREED.counted, cached=None))).state == "equal"


def test_a_request_cut_short_explains_a_context_and_no_token_more() -> None:
    cut = Counts(prompt=40, completion=3, sequences=1)
    counted = Counts(prompt=140, completion=59, sequences=5, cached=32)
    found = verdict.of_orderly(replace(AGREED, counted=counted, cut=cut))
    assert (found.state, found.unattributed_tokens, found.allowed_tokens) == ("bounded", 49, 1000)
    found = verdict.of_orderly(replace(AGREED, counted=replace(counted, prompt=1000, completion=151), cut=cut))
    assert (found.state, found.gap_tokens) == ("gap", 1)
    assert verdict.of_orderly(replace(AGREED, counted=replace(counted, prompt=99), cut=cut)).state == "gap"


def test_what_a_killed_engine_counted_and_nobody_received_is_lost() -> None:
    cut = Counts(prompt=40, completion=3, sequences=1)
    counted = Counts(prompt=150, completion=60, sequences=5, cached=32)
    found = verdict.of_killed(replace(AGREED, counted=counted, cut=cut))
    assert (found.state, found.lost) == ("lost", Counts(prompt=10, completion=7))
    again = verdict.of_killed(replace(AGREED, counted=counted, cut=cut, lost=found.lost))
    assert (again.state, again.lost) == ("lost", Counts())


def test_what_no_request_of_a_killed_engine_explains_is_a_gap_and_not_lost() -> None:
    found = verdict.of_killed(replace(AGREED, counted=replace(AGREED.counted, prompt=101)))
    assert (found.state, found.gap_tokens, found.lost) == ("gap", 1, Counts())
    found = verdict.of_killed(replace(AGREED, counted=replace(AGREED.counted, prompt=1200), open_sequences=1))
    assert (found.state, found.gap_tokens, found.lost) == ("gap", 100, Counts())


def test_only_requests_that_ended_after_the_last_scrape_may_exceed_the_counters() -> None:
    counted = Counts(prompt=80, completion=40, sequences=4, cached=32)
    late = replace(AGREED, counted=counted, late=Counts(prompt=20, completion=10))
    assert verdict.of_killed(late).state == "equal"
    found = verdict.of_killed(replace(late, late=Counts(prompt=19, completion=8)))
    assert (found.state, found.gap_tokens) == ("gap", -3)


def test_a_running_engine_has_counted_what_was_stored_and_stored_what_was_counted() -> None:
    assert verdict.of_running(AGREED, counted_before=150, used_before=150).state == "running"
    found = verdict.of_running(AGREED, counted_before=150, used_before=151)
    assert (found.state, found.gap_tokens) == ("gap", -1)
    found = verdict.of_running(AGREED, counted_before=152, used_before=150)
    assert (found.state, found.gap_tokens) == ("gap", 2)
    assert verdict.of_running(replace(AGREED, open_sequences=1), counted_before=152, used_before=0).state == "running"

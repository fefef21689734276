"""A rollout policy is changed by words or fields, and what is no policy is named."""

from __future__ import annotations

from typing import Any

import pytest

from workers.errors import BadValue
from workers.serving import answer_patterns, rollout_policy
from workers.serving.rollout_policy import DEFAULT, CanaryPrompt, RolloutPolicy

PRESENT = RolloutPolicy(max_surge=2, max_ttft_seconds=3, canaries=(CanaryPrompt(prompt="2 + 2?", equals="4"),))


def test_what_is_left_out_stays_and_nothing_is_the_default() -> None:
    given = rollout_policy.parse("max_unavailable=0 max_ttft_seconds= min_ready_seconds=0.5")
    found = rollout_policy.changed(PRESENT, given)
    assert (found.max_surge, found.max_unavailable, found.min_ready_seconds) == (2, 0, 0.5)
    assert (found.max_ttft_seconds, found.canaries) == (None, PRESENT.canaries)


def test_a_policy_is_written_as_it_is_read() -> None:
    text = rollout_policy.words(PRESENT)
    assert rollout_policy.changed(DEFAULT, rollout_policy.parse(text)) == RolloutPolicy(max_surge=2, max_ttft_seconds=3)


def test_canaries_are_the_last_words_as_json() -> None:
    text = 'max_surge=3 canaries=[{"prompt": "A prime?", "matches": "[2357] *$"}]'
    found = rollout_policy.changed(PRESENT, rollout_policy.parse(text))
    assert (found.max_surge, found.canaries) == (3, (CanaryPrompt(prompt="A prime?", matches="[2357] *$"),))
    again = rollout_policy.parse(f"canaries={rollout_policy.canaries_json(found)}")
    assert rollout_policy.changed(DEFAULT, again).canaries == found.canaries
    assert rollout_policy.changed(found, rollout_policy.parse("canaries=")).canaries == ()


def test_a_pattern_that_is_refused_says_why() -> None:
    with pytest.raises(BadValue) as refused:
        rollout_policy.changed(DEFAULT, {"canaries": [{"prompt": "x", "matches": "(open"}]})
    assert "'(open' is no regular expression of RE2: missing )" in refused.value.allowed


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("(?i)^paris", "Paris.", True),
        (r"\b4\b", "It is 4.", True),
        (r"\b4\b", "It is 42.", False),
        ("(a*)*b", "a" * 1_000_000, False),  # what backtracks takes longer than the sun lives
    ],
    ids=["case", "word", "no-word", "hostile"],
)
def test_a_pattern_is_found_somewhere_in_linear_time(pattern: str, text: str, found: bool) -> None:
    assert answer_patterns.is_found(pattern, text) is found


@pytest.mark.parametrize(
    "text", ["max_surge", "canaries=1", "canaries=[", "canaries=[] max_surge=1", "surge=1", "max_surge=many"]
)
def test_words_that_are_no_settings_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        rollout_policy.parse(text)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"max_surge": -1}, "rollout setting max_surge"),
        ({"max_surge": 1.5}, "rollout setting max_surge"),
        ({"canaries": [{"prompt": ""}]}, "rollout setting canaries"),
        ({"canaries": [{"prompt": "x", "near": "y"}]}, "rollout setting canaries"),
        ({"canaries": [{"prompt": "x", "matches": "(open"}]}, "rollout setting canaries"),
        ({"canaries": [{"prompt": "x", "matches": r"(a)\1"}]}, "rollout setting canaries"),
        ({"canaries": [{"prompt": "x", "matches": "a" * 1001}]}, "rollout setting canaries"),
        ({"surge": 1}, "rollout setting"),
    ],
)
def test_values_that_are_no_policy_are_named(given: dict[str, Any], what: str) -> None:
    with pytest.raises(BadValue) as refused:
        rollout_policy.changed(DEFAULT, given)
    assert refused.value.what == what

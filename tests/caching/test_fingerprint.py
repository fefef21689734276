"""Which requests are equal, and which may be served from the cache."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caching.fingerprint import IGNORED, WALKED_VALUES, canonical

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, wörld 1.0"}],
    "temperature": 0,
    "max_tokens": 16,
    "logit_bias": {"50256": -100},
    "stop": ["\n", "END"],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"minimum": 1, "enum": [1, 2.5, True]}}}],
}

#: Every field that changes a response, with another value for it.
CHANGES: dict[str, Any] = {
    "model": "other",
    "messages": CHAT["messages"][:1],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 7,
    "n": 2,
    "max_tokens": 17,
    "max_completion_tokens": 16,
    "stop": ["END", "\n"],
    "logit_bias": {"50256": -99},
    "logprobs": True,
    "top_logprobs": 2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "a_field_nobody_knows_yet": 1,
}

numbers = st.integers(-(2**53) + 1, 2**53 - 1)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=6)


def shuffled(value: Any, seed: int) -> Any:
    """Return the same JSON value with the keys of its objects in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        random.Random(seed).shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return [shuffled(inner, seed) for inner in value] if isinstance(value, list) else value


def as_floats(value: Any) -> Any:
    """Return the same JSON value with every whole number written with a decimal point."""
    if isinstance(value, dict):
        return {key: as_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_floats(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(bodies, st.integers())
def test_the_order_of_keys_does_not_matter(body: dict[str, Any], seed: int) -> None:
    assert canonical(shuffled(body, seed)) == canonical(body)


@given(bodies)
def test_the_form_of_a_number_does_not_matter(body: dict[str, Any]) -> None:
    assert canonical(as_floats(body)) == canonical(body)


@given(bodies)
def test_white_space_and_escapes_do_not_matter(body: dict[str, Any]) -> None:
    spaced = orjson.loads(orjson.dumps(body, option=orjson.OPT_INDENT_2))
    assert canonical(spaced) == canonical(body)
    assert canonical(orjson.loads(rb'{"a": "\u0041\u00e9"}')) == canonical({"a": "Aé"})


@given(bodies, bodies)
def test_two_requests_are_the_same_only_if_every_kept_field_is(one: dict[str, Any], other: dict[str, Any]) -> None:
    left, right = ({k: v for k, v in body.items() if k not in IGNORED} for body in (one, other))
    assert (canonical(one) == canonical(other)) == (
        as_floats(left) == as_floats(right) and _kinds(left) == _kinds(right)
    )


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_changes_the_answer_changes_the_name(field: str) -> None:
    assert canonical({**CHAT, field: CHANGES[field]}) != canonical(CHAT)


@pytest.mark.parametrize("field", sorted(IGNORED))
def test_a_field_that_cannot_change_the_answer_does_not(field: str) -> None:
    assert canonical({**CHAT, field: "anything"}) == canonical(CHAT)


@pytest.mark.parametrize("value", [True, "1", None, [1], {}])
def test_a_number_is_not_taken_for_a_value_of_another_kind(value: Any) -> None:
    assert canonical({"a": value}) != canonical({"a": 1})


def test_a_list_keeps_its_order() -> None:
    assert canonical({"stop": ["a", "b"]}) != canonical({"stop": ["b", "a"]})


@pytest.mark.parametrize(
    "put",
    [
        lambda number: [{"role": "user", "content": "x", "weight": number}],
        lambda number: [{"role": "user", "content": "x"}, {"role": "user", "content": [{"cost": number}]}],
        lambda number: ["x", {"cost": number}],
        lambda number: {"cost": number},
        lambda number: [[number]],
        lambda number: [*[{"role": "user"}] * 2000, {"weight": number}],
        lambda number: [{**{f"k{each}": "" for each in range(50)}, "weight": number}],
    ],
)
def test_a_number_is_the_same_wherever_it_is(put: Callable[[float], Any]) -> None:
    assert canonical({"messages": put(1.0)}) == canonical({"messages": put(1)})
    assert canonical({"messages": put(1.5)}) != canonical({"messages": put(1)})


def test_the_canonical_form_is_this_one() -> None:
    body = {"b": [1.0, 2.5, {"d": -0.0, "c": 1e3}], "a": "é", "stream": True, "user": "u"}
    assert canonical(body) == '{"a":"é","b":[1,2.5,{"c":1000,"d":0}]}'.encode()


def test_a_request_of_very_many_values_still_has_one_form_of_its_own_numbers() -> None:
    many = [0] * 2 * WALKED_VALUES
    assert canonical({"prompt": many, "top_p": 1.0}) == canonical({"top_p": 1, "prompt": many})


def test_a_long_prompt_does_not_keep_numbers_from_having_one_form() -> None:
    long = "x" * 1_000_000
    assert canonical({"prompt": long, "a": [1.0]}) == canonical({"prompt": long, "a": [1]})


def _kinds(value: Any) -> Any:
    """Return the value with every leaf tagged with its JSON type: in Python, True equals 1."""
    if isinstance(value, dict):
        return {key: _kinds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_kinds(inner) for inner in value]
    return "number" if isinstance(value, float) else "number" if type(value) is int else type(value).__name__

"""The cache key changes with every change that could change the response, and with nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gateway.cache.policy import policy_for
from gateway.errors import BadRequest
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from tenants.caller_limits import CacheTerms
from tenants.ids import KeyId, ProjectId, TenantId, new_id
from tenants.registry import Policy
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures import callers

NO_HEADERS: Mapping[str, str] = {}
WHO = replace(callers.caller(), cache=CacheTerms(mode="all"))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "days": {"minimum": 1, "maximum": 7}},
    "required": ["city"],
}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1.0"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "logit_bias": {"50256": -100, "7": 1.5},
    "temperature": 1,
    "seed": 0,
    "max_tokens": 16,
    "stop": ["END", "\n"],
    "chat_template_kwargs": {"enable_thinking": False, "nested": [1, [2.5, {"deep": None}]]},
}
#: Fields whose checks let no whole number be written with a decimal point.
COUNTS = frozenset({"max_tokens"})
OTHERS: list[Any] = [None, True, False, 0, 1, 2, -7, 0.25, 10**18, "", "1", "x", [], [1], {}, {"k": 1}]

Path = tuple[str | int, ...]


class _Served:
    digest = "revision"


def name_of(
    raw: bytes, who: Caller = WHO, path: str = "/v1/chat/completions", headers: Mapping[str, str] = NO_HEADERS
) -> bytes | None:
    """Return what the answer to a request is called; None where it is neither read nor kept."""
    call = request_body.parse(ENDPOINTS[path], raw)
    return policy_for(who, call, _Served(), headers).name  # type: ignore[arg-type]


NAME = name_of(orjson.dumps(CHAT))


def places(value: Any, at: Path = ()) -> list[Path]:
    """Return the paths of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, each in inner for path in [(*at, key), *places(each, (*at, key))]]


def changed(place: Path, other: Any) -> dict[str, Any]:
    """Return the request with another value at one place; ``...`` takes away what is there."""
    body = deepcopy(CHAT)
    holder: Any = body
    for step in place[:-1]:
        holder = holder[step]
    if other is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = other
    return body


def found_at(place: Path) -> Any:
    """Return what the request has at a place."""
    value: Any = CHAT
    for step in place:
        value = value[step]
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, where 1 and 1.0 are equal and 1 and true are not."""
    return (type(one) in {int, float} and type(other) in {int, float} and bool(one == other)) or _exact(one, other)


def _exact(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=200)
@given(st.sampled_from(places(CHAT)), st.sampled_from([..., *OTHERS]))
def test_any_change_of_a_field_however_deep_changes_the_name(place: Path, other: Any) -> None:
    assume(other is ... or not same(found_at(place), other))
    try:
        name = name_of(orjson.dumps(changed(place, other)))
    except BadRequest:
        return
    assert name != NAME


@settings(max_examples=50)
@given(st.sampled_from([at for at in places(CHAT) if isinstance(found_at(at), dict)]), st.sampled_from(OTHERS))
def test_a_field_that_is_added_however_deep_changes_the_name(place: Path, value: Any) -> None:
    added = "user_defined" if place else "min_p"  # a field that no engine knows is dropped
    try:
        name = name_of(orjson.dumps(changed(place, {**found_at(place), added: value})))
    except BadRequest:
        return
    assert name != NAME


@pytest.mark.parametrize("place", [at for at in places(CHAT) if isinstance(found_at(at), list)], ids=str)
def test_the_order_and_number_of_things_in_a_list_count(place: Path) -> None:
    things = found_at(place)
    for other in ([*things, "more"], [*things, things[0]], things[::-1]):
        if other != things:
            try:
                assert name_of(orjson.dumps(changed(place, other))) != NAME
            except BadRequest:
                continue


def written(value: Any, chance: random.Random, at: Path = ()) -> str:
    """Write a JSON value in one of its many ways: order of keys, white space, escapes, forms of numbers."""
    space = chance.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        items = list(value.items())
        chance.shuffle(items)
        told = [f"{_text(key, chance)}{space}:{space}{written(each, chance, (*at, key))}" for key, each in items]
        return f"{{{space}" + f"{space},".join(told) + f"{space}}}"
    if isinstance(value, list):
        return f"[{space}" + f",{space}".join(written(each, chance, (*at, 0)) for each in value) + "]"
    if isinstance(value, str):
        return _text(value, chance)
    if isinstance(value, bool) or value is None or at[-1] in COUNTS:
        return orjson.dumps(value).decode()
    return chance.choice([f"{value}", f"{value:e}", f"{float(value)}", f"{value * 10}e-1", f"{float(value)}0"])


def _text(text: str, chance: random.Random) -> str:
    return '"' + "".join([_character(each, chance) for each in text]) + '"'


def _character(each: str, chance: random.Random) -> str:
    short = chance.random() < 0.8 or ord(each) > 0xFFFF  # what is more is escaped as two
    return orjson.dumps(each).decode()[1:-1] if short else f"\\u{ord(each):04x}"


#: What says nothing about the answer, or may not be said to an engine.
SAYS_NOTHING = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.booleans(),
        "stream_options": st.sampled_from([None, {}, {"include_usage": True}, {"continuous_usage_stats": True}]),
        "user": st.text(max_size=8),
        "safety_identifier": st.text(max_size=8),
        "metadata": st.dictionaries(
            st.text("aé b-1", min_size=1, max_size=4), st.text("aé b-1", max_size=4), max_size=2
        ),
        "store": st.booleans(),
        "service_tier": st.sampled_from(["auto", "flex"]),
        "prompt_cache_key": st.text(max_size=8),
        "request_id": st.text(max_size=8),
        "session_id": st.text(max_size=8),
        "cache_salt": st.text(max_size=8),
        "priority": st.integers(-9, 9),
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "x-request-id": st.just("mine"),
        "x-session-id": st.just("s"),
        "idempotency-key": st.just("i"),
        "user-agent": st.just("a"),
        "cache-control": st.sampled_from(["max-age=1", "only-if-cached"]),
        "x-prediction-cache": st.sampled_from(["on", "read", "write"]),
    },
)


@settings(max_examples=100)
@given(st.integers(), SAYS_NOTHING, HEADERS)
@example(0, {"stream": True, "user": "u"}, {})
def test_how_a_request_is_written_and_by_whom_it_is_sent_does_not_change_the_name(
    seed: int, beside: dict[str, Any], headers: dict[str, str]
) -> None:
    assert name_of(written({**CHAT, **beside}, random.Random(seed)).encode(), headers=headers) == NAME


def test_a_name_is_of_one_endpoint_revision_tenant_and_salt_epoch() -> None:
    raw = orjson.dumps({"model": "demo", "prompt": "x", "messages": [{"role": "user", "content": "x"}]})
    paths = ("/v1/chat/completions", "/v1/completions")
    later = replace(WHO, policy=Policy(salt_epoch=2))
    stranger = replace(WHO, tenant_id=TenantId(new_id()))
    names = [name_of(raw, path=path) for path in paths] + [name_of(raw, who) for who in (later, stranger)]
    assert len({*names, None}) == 5


@pytest.mark.parametrize(
    ("scope", "project", "key"), [("tenant", True, True), ("project", False, True), ("key", False, False)]
)
def test_projects_and_keys_share_answers_as_far_as_the_scope_of_their_tenant_says(
    scope: str, project: bool, key: bool
) -> None:
    one = replace(WHO, policy=Policy(cache_scope=scope))
    of_project = replace(one, project_id=ProjectId(new_id()), key_id=KeyId(new_id()))
    of_key = replace(one, key_id=KeyId(new_id()))
    raw = orjson.dumps(CHAT)
    assert (name_of(raw, of_project) == name_of(raw, one), name_of(raw, of_key) == name_of(raw, one)) == (project, key)


def test_the_revision_is_in_the_name() -> None:
    """A new revision of a model begins with nothing stored."""
    call = request_body.parse(ENDPOINTS["/v1/chat/completions"], orjson.dumps(CHAT))
    other = _Served()
    other.digest = "another"
    assert policy_for(WHO, call, other, {}).name != NAME  # type: ignore[arg-type]

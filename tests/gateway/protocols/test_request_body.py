"""Errors name the field at fault, and fields that would break isolation never reach an engine."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogue.registry import ServedModel
from gateway.admission.cost_estimate import DEFAULT_NEW_TOKENS
from gateway.errors import BadRequest
from gateway.protocols import request_body
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.protocols.engine_fields import MAX_GRAMMAR, MAX_ITEMS
from gateway.protocols.request_body import MAX_BRACKETS, MAX_CHOICES, MAX_DEPTH, Call
from gateway.protocols.validators import MAX_INPUTS, MAX_MESSAGES
from gateway.upstream.routing import request as routing_request
from routing.sessions import LONGEST_TTL_SECONDS
from tenants.caller_limits import LONGEST_SESSION_SECONDS
from tenants.ids import RevisionId, TenantId, new_id
from tenants.isolation import keyspace
from tenants.registry import Policy
from tests.gateway.fixtures.callers import caller

CHAT = ENDPOINTS["/v1/chat/completions"]
COMPLETIONS = ENDPOINTS["/v1/completions"]
#: Fields that select another tenant's cache, a place in the engine's queue or its internals.
INTERNAL = (
    *("cache_salt", "priority", "session_id", "request_id", "data_parallel_rank", "kv_transfer_params", "vllm_xargs"),
    *("ec_transfer_params", "stream_interval", "mm_payload", "return_mm_kwargs", "routed_experts_prompt_start"),
    *("previous_input_messages", "enable_response_messages", "watermarking"),
)
HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
TURN: dict[str, Any] = {
    **HELLO,
    "messages": [*HELLO["messages"], {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Joke"}],
}
ONCE: dict[str, Any] = {"model": "demo", "prompt": "Once"}
MODEL = ServedModel(
    name="demo",
    owner_id=TenantId(new_id()),
    owner_slug="acme",
    public=True,
    revision_id=RevisionId(new_id()),
    digest="d",
    context_length_tokens=2048,
    created_at=0,
)


def parse(body: dict[str, Any], endpoint: Endpoint = CHAT) -> Call:
    """Parse a body as it comes over the wire."""
    return request_body.parse(endpoint, orjson.dumps(body))


def engine_body(call: Call, salt: str) -> bytes:
    """Return what an engine is asked."""
    return call.endpoint.engine_body(call.body, stream=call.stream, salt=salt)


def refused(raw: bytes, endpoint: Endpoint = CHAT) -> tuple[str, str | None]:
    """Return the code and the field that a body is refused with."""
    with pytest.raises(BadRequest) as error:
        request_body.parse(endpoint, raw)
    assert error.value.status == 400
    return error.value.code, error.value.param


WRONG: list[tuple[str, Any, str]] = [
    ("model", 1, "invalid_type"),
    ("model", ["demo"], "invalid_type"),
    ("model", "x" * 201, "invalid_type"),
    ("model", "", "missing_field"),
    ("model", None, "missing_field"),
    ("stream", "yes", "invalid_type"),
    ("stream", 1, "invalid_type"),
    ("stream_options", [], "invalid_type"),
    ("stream_options", True, "invalid_type"),
    ("max_tokens", "10", "invalid_type"),
    ("max_tokens", 1.5, "invalid_type"),
    ("max_tokens", True, "invalid_type"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", -1, "invalid_value"),
    ("n", "2", "invalid_type"),
    ("n", 0, "invalid_value"),
    ("n", MAX_CHOICES + 1, "invalid_value"),
    ("temperature", "hot", "invalid_type"),
    ("temperature", False, "invalid_type"),
    ("top_p", [1], "invalid_type"),
    ("user", 5, "invalid_type"),
    ("user", "x" * 201, "invalid_type"),
    ("prompt_cache_key", {}, "invalid_type"),
]


@pytest.mark.parametrize(("field", "value", "code"), WRONG)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_field_of_the_wrong_kind_is_named(endpoint: Endpoint, field: str, value: Any, code: str) -> None:
    body = {**(HELLO if endpoint == CHAT else ONCE), field: value}
    assert refused(orjson.dumps(body), endpoint) == (code, field)


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        (None, "missing_field", "messages"),
        ("Hello", "invalid_type", "messages"),
        ({}, "invalid_type", "messages"),
        ([], "invalid_value", "messages"),
        (["Hello"], "invalid_type", "messages[0]"),
        ([None], "invalid_type", "messages[0]"),
        ([{"content": "Hello"}], "invalid_type", "messages[0].role"),
        ([{"role": 1, "content": "Hello"}], "invalid_type", "messages[0].role"),
        ([HELLO["messages"][0], {"role": "user", "content": 1}], "invalid_type", "messages[1].content"),
        ([{"role": "user", "content": {"text": "Hello"}}], "invalid_type", "messages[0].content"),
        ([{"role": "user"}] * (MAX_MESSAGES + 1), "invalid_value", "messages"),
    ],
)
def test_wrong_messages_are_named_by_their_place(messages: Any, code: str, param: str) -> None:
    assert refused(orjson.dumps({**HELLO, "messages": messages})) == (code, param)


@pytest.mark.parametrize("prompt", [None, "", [], 1, {}, True])
def test_a_wrong_prompt_is_named(prompt: Any) -> None:
    code = "missing_field" if prompt is None else "invalid_type"
    assert refused(orjson.dumps({**ONCE, "prompt": prompt}), COMPLETIONS) == (code, "prompt")


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"nonsense", b'{"model": "demo",}', b"\xff\xfe", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}'],
)
def test_a_body_that_is_no_json_is_refused(raw: bytes) -> None:
    assert refused(raw) == ("invalid_json", None)


@pytest.mark.parametrize(
    ("raw", "message"),
    [(gzip.compress(b"{}"), "is compressed with gzip"), (b'{"a": "\xff"}', "byte 7 is not UTF-8")],
    ids=["gzip", "latin"],
)
def test_a_body_that_is_no_text_is_told_why(raw: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        request_body.parse(CHAT, raw)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"', b"true"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    assert refused(raw) == ("invalid_type", None)


def test_a_message_says_what_was_found_and_what_is_allowed() -> None:
    with pytest.raises(BadRequest, match=r"'temperature' is a string\. It must be a number\."):
        parse({**HELLO, "temperature": "hot"})
    with pytest.raises(BadRequest, match=r"'max_tokens' is 0\. It must be a whole number of at least 1\."):
        parse({**HELLO, "max_tokens": 0})


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_allowed_as_deep_as_it_can_be_sent_on(open_: bytes, close: bytes) -> None:
    def nested(depth: int) -> bytes:
        inner = b"1" if open_ != b"[" else b""
        return b'{"model":"demo","messages":[{"role":"user"}],"x":' + open_ * depth + inner + close * depth + b"}"

    deepest = request_body.parse(CHAT, nested(MAX_DEPTH - 1))
    assert orjson.loads(engine_body(deepest, "salt"))["cache_salt"] == "salt"
    assert refused(nested(MAX_DEPTH + 1)) == ("invalid_value", None)
    long = b'{"model":"m","messages":[{"role":"user","content":"' + b"." * 2 * MAX_BRACKETS + b'"}],"x":'
    assert refused(long + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}") == ("invalid_value", None)
    assert refused(nested(1000)) == ("invalid_value", None)
    assert refused(nested(100_000)) == ("invalid_json", None)


def test_a_body_of_very_many_lists_is_refused_before_it_is_read() -> None:
    assert refused(b'{"x":' + b"[" * (MAX_BRACKETS + 1)) == ("invalid_value", None)


def test_brackets_in_a_text_do_not_make_it_deep() -> None:
    assert parse({**HELLO, "messages": [{"role": "user", "content": "[{" * 5000}]}).model == "demo"


@pytest.mark.parametrize("field", INTERNAL)
def test_what_would_break_isolation_never_reaches_an_engine(field: str) -> None:
    call = parse({**HELLO, field: "someone-elses"})
    assert field not in call.body
    sent = orjson.loads(engine_body(call, "the-derived-salt"))
    assert sent.get(field) == ("the-derived-salt" if field == "cache_salt" else None)


def test_what_only_others_servers_know_is_dropped() -> None:
    others = {
        "verbosity": "low",
        "modalities": ["text"],
        "best_of": 2,
        "use_beam_search": False,
    }
    assert parse({**HELLO, **others}).body == HELLO


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"mm_processor_kwargs": {"max_pixels": 1 << 40}}, "unsupported_value", "mm_processor_kwargs"),
        ({"media_io_kwargs": {"video": {"num_frames": -1}}}, "unsupported_value", "media_io_kwargs"),
        ({"use_beam_search": True}, "unsupported_value", "use_beam_search"),
        ({"chat_template": "{{ 1 }}"}, "unsupported_value", "chat_template"),
        ({"prompt_embeds": "AAAA"}, "unsupported_value", "prompt_embeds"),
        ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "invalid_value", "prompt_logprobs"),
        ({"logit_bias": {str(number): 1 for number in range(MAX_ITEMS + 1)}}, "invalid_value", "logit_bias"),
        ({"bad_words": ["a"] * (MAX_ITEMS + 1)}, "invalid_value", "bad_words"),
        ({"structured_outputs": {"regex": "a" * (MAX_GRAMMAR + 1)}}, "invalid_value", "structured_outputs.regex"),
    ],
)
def test_what_could_exhaust_an_engine_is_refused_by_name(change: dict[str, Any], code: str, param: str) -> None:
    assert refused(orjson.dumps({**HELLO, **change})) == (code, param)


def test_what_an_engine_can_bear_goes_to_it() -> None:
    most = {
        "prompt_logprobs": 20,
        "logit_bias": {str(number): 1 for number in range(MAX_ITEMS)},
        "structured_outputs": {"regex": "a" * MAX_GRAMMAR},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert parse({**HELLO, **most}).body == {**HELLO, **most}


def test_a_field_of_vllm_goes_to_the_engine_as_it_came() -> None:
    sent = orjson.loads(engine_body(parse({**HELLO, "min_p": 0.1, "tools": [{"a": [1]}]}), "salt"))
    assert sent == {**HELLO, "min_p": 0.1, "tools": [{"a": [1]}], "cache_salt": "salt"}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_a_streaming_engine_is_always_asked_for_usage(options: dict[str, Any] | None) -> None:
    call = parse({**HELLO, "stream": True, "stream_options": options})
    assert call.include_usage is bool(options and options.get("include_usage"))
    assert orjson.loads(engine_body(call, "salt"))["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("options", [None, {}, {"include_usage": True, "continuous_usage_stats": True}])
def test_a_counted_stream_is_asked_for_usage_with_each_event(options: dict[str, Any] | None) -> None:
    call = parse({**HELLO, "stream": True, "stream_options": options})
    sent = orjson.loads(call.endpoint.engine_body(call.body, stream=True, salt="salt", counted=True))
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_usage_with_each_event_alone_is_nothing_that_a_client_can_ask_for() -> None:
    call = parse({**HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert orjson.loads(engine_body(call, "salt"))["stream_options"]["continuous_usage_stats"] is False


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
    ],
)
def test_the_newer_name_of_the_length_limit_counts(limits: dict[str, Any], expected: int | None) -> None:
    assert parse({**HELLO, **limits}).max_new_tokens == expected


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": ["a"] * 128}, 128),
    ],
)
def test_choices_are_n_of_each_prompt(body: dict[str, Any], choices: int) -> None:
    assert parse({**ONCE, **body}, COMPLETIONS).choices == choices


def test_a_batch_of_more_prompts_than_choices_is_refused() -> None:
    assert refused(orjson.dumps({**ONCE, "prompt": ["a"] * 65, "n": 2}), COMPLETIONS) == ("invalid_value", "n")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, {**ONCE, "messages": "not looked at"}),
        (COMPLETIONS, {**ONCE, "messages": [1]}),
        (CHAT, {**HELLO, "prompt": []}),
        (CHAT, {**HELLO, "prompt": 1}),
    ],
)
def test_the_other_endpoints_field_is_the_engines_business(endpoint: Endpoint, body: dict[str, Any]) -> None:
    asked = routing_request.build(parse(body, endpoint), caller(), MODEL, {})
    assert len(asked.prefix.hashes) == 1


def test_the_length_that_routing_expects_fits_in_the_model() -> None:
    def expected(**limits: int) -> int:
        return routing_request.build(parse({**HELLO, **limits}), caller(), MODEL, {}).max_new_tokens

    assert [expected(), expected(max_tokens=5), expected(max_tokens=2**62), expected(max_tokens=5, n=3)] == [
        DEFAULT_NEW_TOKENS,
        5,
        2048,
        15,
    ]


@pytest.mark.parametrize(
    ("headers", "fields", "session"),
    [
        ({}, {}, None),
        ({"x-session-id": "s1"}, {"user": "u1", "prompt_cache_key": "k1"}, "s1"),
        ({}, {"user": "u1", "prompt_cache_key": "k1"}, "k1"),
        ({}, {"user": "u1"}, "u1"),
        ({"x-session-id": ""}, {"user": ""}, None),
    ],
)
def test_a_session_is_named_by_header_cache_key_or_user(
    headers: dict[str, str], fields: dict[str, str], session: str | None
) -> None:
    who = caller()
    asked = routing_request.build(parse({**HELLO, **fields}), who, MODEL, headers)
    assert asked.session == (keyspace.session_key(who, "demo", session) if session else None)


def test_the_tenants_policy_says_which_headers_name_a_session() -> None:
    who = replace(caller(), policy=Policy(session_headers=("x-thread-id", "x-task-id"), session_ttl_seconds=5))
    headers = {"x-session-id": "s", "x-task-id": "t"}
    for name in ("x-task-id", "x-thread-id"):
        headers[name] = name
        asked = routing_request.build(parse(HELLO), who, MODEL, headers)
        assert asked.session == keyspace.session_key(who, "demo", name)
        assert (asked.session_ttl_seconds, asked.strict) == (5, False)
    asked = routing_request.build(parse({**HELLO, "user": "u"}), who, MODEL, {"x-session-id": "s"})
    assert asked.session == keyspace.session_key(who, "demo", "u")


def test_one_name_of_two_tenants_is_two_sessions() -> None:
    headers = {"x-session-id": "s"}
    mine, theirs = (routing_request.build(parse(TURN), caller(), MODEL, headers).session for _ in range(2))
    assert None is not mine != theirs is not None
    mine, theirs = (routing_request.build(parse(TURN), caller(), MODEL, {}).session for _ in range(2))
    assert None is not mine != theirs is not None


def test_a_conversation_without_a_name_is_a_session_from_its_first_answer_on() -> None:
    who = caller()

    def session(*messages: dict[str, str]) -> bytes | None:
        return routing_request.build(parse({**HELLO, "messages": [*messages]}), who, MODEL, {}).session

    asked, answer, joke = TURN["messages"]
    assert session(asked) is None
    assert session(asked, answer, joke) == session(asked, answer, joke, answer, asked)
    assert session(asked, answer, joke) not in {None, session(asked, {**answer, "content": "Ho"}, joke)}


def test_only_a_session_with_a_name_is_strict_and_without_a_lifetime_there_is_none() -> None:
    named, headers = {**TURN, "user": "u"}, {"x-session-id": "s"}
    strict = replace(caller(), policy=Policy(session_affinity="strict"))
    none = replace(caller(), policy=Policy(session_affinity="strict", session_ttl_seconds=0))
    asked = [(TURN, headers), (named, {}), (TURN, {}), (HELLO, {})]
    found = [routing_request.build(parse(body), strict, MODEL, sent) for body, sent in asked]
    assert [each.strict for each in found] == [True, True, False, False]
    assert [routing_request.build(parse(body), none, MODEL, sent).session for body, sent in asked] == [None] * 4


def test_a_policy_allows_the_longest_lifetime_that_routing_keeps() -> None:
    assert LONGEST_SESSION_SECONDS == LONGEST_TTL_SECONDS


def test_tools_come_before_the_messages_and_count_as_system_prompt() -> None:
    plain = routing_request.build(parse(HELLO), caller(), MODEL, {}).prefix
    tooled = routing_request.build(parse({**HELLO, "tools": [{"type": "function"}]}), caller(), MODEL, {}).prefix
    assert (len(plain.hashes), len(tooled.hashes)) == (1, 2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
CONVERSED: dict[str, Any] = {"messages": HELLO["messages"]}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CONVERSED,
    "/v1/completions": {"prompt": "Once"},
    "/v1/responses": {"input": "Hello"},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/embeddings": {"input": ["Hello"]},
    "/v1/messages": {**CONVERSED, "max_tokens": 5},
    "/v1/messages/count_tokens": CONVERSED,
    "/v1/tokenize": {"prompt": "Hello"},
    "/v1/detokenize": {"tokens": [1]},
}
known = sorted({name for endpoint in ENDPOINTS.values() for name in endpoint.checks} - {"model"})
others = ["stream_options", "tools", "seed", "metadata", "conversation", "x"]
endpoints = st.sampled_from(list(ENDPOINTS.values()))


def test_every_endpoint_has_a_body_that_is_tried_here() -> None:
    assert set(VALID) == set(ENDPOINTS)


@given(st.dictionaries(st.sampled_from([*known, *others]), json_values, max_size=6), endpoints)
def test_any_json_is_either_refused_or_can_be_routed_and_sent(body: dict[str, Any], endpoint: Endpoint) -> None:
    raw = json.dumps({"model": "demo", **VALID[endpoint.path], **body}).encode()
    try:
        call = request_body.parse(endpoint, raw)
    except BadRequest as error:
        assert orjson.loads(endpoint.error_body(error))["error"]["message"]
        return
    endpoint.clamp(call.body, MODEL.context_length_tokens)
    routing_request.build(call, caller(), MODEL, {})
    assert orjson.loads(engine_body(call, "salt")).get("cache_salt") == ("salt" if endpoint.salted else None)


@given(st.binary(max_size=60), endpoints)
def test_any_bytes_are_answered_with_an_error_of_ours(raw: bytes, endpoint: Endpoint) -> None:
    code, _ = refused(raw, endpoint)
    assert code in {"invalid_json", "invalid_type", "missing_field"}


@pytest.mark.parametrize("path", sorted(VALID))
def test_a_field_that_is_missing_is_named_on_every_endpoint(path: str) -> None:
    (first, *_) = VALID[path]
    assert refused(orjson.dumps({"model": "demo"}), ENDPOINTS[path]) == ("missing_field", first)
    assert refused(orjson.dumps(VALID[path]), ENDPOINTS[path]) == ("missing_field", "model")


@pytest.mark.parametrize(
    ("path", "field", "value", "code"),
    [
        ("/v1/messages", "max_tokens", 0, "invalid_value"),
        ("/v1/messages", "max_tokens", None, "missing_field"),
        ("/v1/messages", "system", 1, "invalid_type"),
        ("/v1/messages", "tools", {}, "invalid_type"),
        ("/v1/messages", "metadata", [], "invalid_type"),
        ("/v1/responses", "input", [], "invalid_value"),
        ("/v1/responses", "input", 5, "invalid_type"),
        ("/v1/responses", "max_output_tokens", "5", "invalid_type"),
        ("/v1/responses", "instructions", ["x"], "invalid_type"),
        ("/v1/responses", "previous_response_id", "resp_1", "unsupported_value"),
        ("/v1/responses", "background", True, "unsupported_value"),
        ("/v1/embeddings", "input", "", "invalid_value"),
        ("/v1/embeddings", "input", [], "invalid_value"),
        ("/v1/embeddings", "input", ["x"] * (MAX_INPUTS + 1), "invalid_value"),
        ("/v1/embeddings", "encoding_format", "bytes", "invalid_value"),
        ("/v1/embeddings", "stream", True, "invalid_value"),
        ("/v1/detokenize", "tokens", "1", "invalid_type"),
    ],
)
def test_what_an_endpoint_does_not_take_is_named(path: str, field: str, value: Any, code: str) -> None:
    assert refused(orjson.dumps({"model": "demo", **VALID[path], field: value}), ENDPOINTS[path]) == (code, field)


def test_one_list_of_tokens_may_be_as_long_as_it_is() -> None:
    call = parse({"model": "demo", "input": [1] * (MAX_INPUTS + 1)}, ENDPOINTS["/v1/embeddings"])
    assert (call.choices, call.max_new_tokens) == (0, None)


def test_what_writes_nothing_expects_no_answer() -> None:
    for endpoint in ENDPOINTS.values():
        call = parse({"model": "demo", **VALID[endpoint.path]}, endpoint)
        assert (routing_request.build(call, caller(), MODEL, {}).max_new_tokens > 0) == bool(endpoint.limits)


def test_an_anthropic_user_is_a_session_and_a_free_count_is_none() -> None:
    who, named = caller(), {"metadata": {"user_id": "u1"}}
    asked = routing_request.build(parse({**HELLO, "max_tokens": 5, **named}, ENDPOINTS["/v1/messages"]), who, MODEL, {})
    assert asked.session == keyspace.session_key(who, "demo", "u1")
    counted = routing_request.build(
        parse(HELLO, ENDPOINTS["/v1/messages/count_tokens"]), who, MODEL, {"x-session-id": "s"}
    )
    assert (counted.session, counted.prefix.hashes) == (None, ())


def test_a_prompt_begins_as_before_when_its_cache_mark_moves_on() -> None:
    def links(*blocks: dict[str, Any]) -> tuple[bytes, ...]:
        messages = [{"role": "user", "content": [block]} for block in blocks]
        call = parse({"model": "demo", "max_tokens": 5, "messages": messages}, ENDPOINTS["/v1/messages"])
        return routing_request.build(call, WHO, MODEL, {}).prefix.hashes

    first, second = ({"type": "text", "text": text} for text in ("one", "two"))
    mark = {"cache_control": {"type": "ephemeral"}}
    before, after = links({**first, **mark}), links(first, {**second, **mark})
    assert after[: len(before)] == before


WHO = caller()

"""Anthropic's events fold into their message, and Anthropic's client combines a replayed message to the same."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import ParsedMessage, RawMessageStreamEvent
from hypothesis import example, given, settings

from caching.errors import NotReplayable
from caching.replay import messages
from caching.replay.typed_events import event
from tests.caching.response_fixtures import messages as some_message

USAGE = {"input_tokens": 2, "output_tokens": 9, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 0}
OPENED = {"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": "demo"}


def start(block: dict[str, Any], index: int = 0) -> bytes:
    """Return the event that starts a block."""
    return event("content_block_start", {"content_block": block, "index": index})


def delta(kind: str, index: int = 0, **fields: Any) -> bytes:
    """Return the event of one delta."""
    return event("content_block_delta", {"delta": {"type": kind, **fields}, "index": index})


BEGIN = event(
    "message_start",
    {
        "message": {
            **OPENED,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 34, "output_tokens": 0},
        }
    },
)


def end(reason: str | None = "tool_use") -> list[bytes]:
    """Return the events that end a message."""
    told = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE}
    return [event("message_delta", told), event("message_stop", {})]


#: As vLLM 0.32 sends them: a thinking block with signature, a text split between letters, two calls.
ENGINE_EVENTS = [
    BEGIN,
    start({"type": "thinking", "thinking": ""}),
    delta("thinking_delta", thinking="Hm"),
    delta("thinking_delta", thinking="m."),
    delta("signature_delta", signature="5ea1"),
    event("content_block_stop", {"index": 0}),
    event("ping", {}),
    start({"type": "text", "text": ""}, 1),
    delta("text_delta", 1, text="Gr"),
    delta("text_delta", 1, text="üße 👋"),
    event("content_block_stop", {"index": 1}),
    start({"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}, 2),
    delta("input_json_delta", 2, partial_json='{"city": "Pa'),
    delta("input_json_delta", 2, partial_json='ris", "days": 2.0}'),
    event("content_block_stop", {"index": 2}),
    start({"type": "tool_use", "id": "call_2", "name": "now", "input": {}}, 3),
    event("content_block_stop", {"index": 3}),
]
MESSAGE = {
    **OPENED,
    "content": [
        {"type": "thinking", "thinking": "Hmm.", "signature": "5ea1"},
        {"type": "text", "text": "Grüße 👋"},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris", "days": 2.0}},
        {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
    ],
    "stop_reason": "tool_use",
    "usage": USAGE,
}


def added_up(events: list[bytes]) -> dict[str, Any]:
    """Return the message that Anthropic's client combines from these events."""
    snapshot: ParsedMessage[Any] | None = None
    buffers: dict[int, bytes] = {}
    for raw in events:
        parsed: Any = construct_type(type_=RawMessageStreamEvent, value=orjson.loads(raw.partition(b"data:")[2]))
        if parsed.type != "ping":
            snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return shown(snapshot)


def shown(message: Any) -> dict[str, Any]:
    """Return a message's fields without null ones."""
    found: dict[str, Any] = message.to_dict(exclude_unset=False, exclude_none=True)
    return found


@settings(max_examples=50)
@given(some_message)
@example({**MESSAGE, "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"Infinity": "NaN"}}]})
def test_a_message_told_as_events_folds_back_into_itself(message: dict[str, Any]) -> None:
    assert messages.fold(messages.stream(message)) == message


@settings(max_examples=50)
@given(some_message)
def test_the_official_client_adds_the_events_up_to_the_same_message(message: dict[str, Any]) -> None:
    expected: Any = construct_type(type_=ParsedMessage[None], value=message)
    assert added_up(list(messages.stream(message))) == shown(expected)


def test_a_real_shaped_stream_folds_into_the_message_it_tells() -> None:
    events = [*ENGINE_EVENTS, *end()]
    assert messages.fold(events) == MESSAGE
    assert added_up(events) == added_up(list(messages.stream(MESSAGE)))


def test_a_message_without_a_word_is_one_empty_text() -> None:
    assert messages.fold([BEGIN, *end("end_turn")])["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        ([], "unfinished"),
        ([BEGIN], "unfinished"),
        ([BEGIN, *end(None)], "unfinished"),
        ([BEGIN, *end("refusal")], "unfinished"),
        ([BEGIN, *end("pause_turn")], "unfinished"),
        ([BEGIN, event("error", {"error": {}}), *end()], "error"),
        ([BEGIN, start({"type": "text", "text": ""}), delta("citations_delta", citation={}), *end()], "citations"),
        ([BEGIN, delta("text_delta", text="no block"), *end()], "malformed"),
        ([BEGIN, start({"type": "text", "text": ""}), delta("text_delta", text=1), *end()], "text"),
        ([BEGIN, b"event: ping\ndata: {", *end()], "malformed"),
        ([BEGIN, b"event: ping\ndata: []", *end()], "malformed"),
    ],
)
def test_what_is_no_whole_message_is_named(events: list[bytes], named: str) -> None:
    with pytest.raises(NotReplayable, match=named):
        messages.fold(events)


@pytest.mark.parametrize(
    "text", ['{"city": "Pa', '{"a": NaN}', '{"a": 123456789012345678901234567890}', '{"a": 1e999}']
)
def test_a_call_that_was_cut_or_would_be_read_otherwise_is_not_kept(text: str) -> None:
    call = [*ENGINE_EVENTS[:12], delta("input_json_delta", 2, partial_json=text), *end()]
    with pytest.raises(NotReplayable, match="input"):
        messages.fold(call)

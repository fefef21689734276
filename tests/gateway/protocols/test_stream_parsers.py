"""Each stream event is recognised in every protocol, and the usage is known at the end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from caching.errors import NotReplayable
from gateway.errors import EngineFailed
from gateway.protocols.anthropic.messages import MessageParser
from gateway.protocols.endpoint import EventKind, StreamParser, usage_of_total
from gateway.protocols.openai.chat import ChunkParser
from gateway.protocols.openai.responses import ResponseParser
from gateway.upstream.sse_splitter import EventSplitter
from tests.gateway.fixtures.protocol_replies import MESSAGE, MESSAGE_EVENTS, RESPONSE, RESPONSE_EVENTS, named
from tests.gateway.fixtures.scripted_app import CHUNKS, USAGE, chunk, delta, events

TOLD = usage_of_total(12, 4, 3)
BROKEN = EngineFailed("It broke.", "engine_failed_mid_stream")


def reading(*, keep: bool = False) -> StreamParser:
    """Return a reader of chunks that keeps little."""
    return ChunkParser(keep=keep, max_kept_bytes=1000)


def split(whole: bytes, size: int) -> list[bytes]:
    """Return the events of a stream that comes in pieces of this size."""
    splitter = EventSplitter()
    return [event for i in range(0, len(whole), size) for event in splitter.feed(whole[i : i + size])]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_real_stream_in_pieces_of_any_size_is_read_the_same(size: int) -> None:
    whole = b"".join(events())
    reader = reading(keep=True)
    kinds = [reader.read(event) for event in split(whole, size)]
    assert kinds == ["head", "content", "content", "content", "usage", "done"]
    assert (reader.usage, reader.done, reader.failed) == (TOLD, True, False)
    assert reader.finish_reason == "stop"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"data: [DONE]", "done"),
        (b"event: error\ndata: {}", "error"),
        (b'data: {"error": {"message": "x"}}', "error"),
        (b'data: {"error":{"message":"x"}}', "error"),
        (b": keep alive", "comment"),
        (b"", "comment"),
        (b"retry: 1000", "comment"),
        (b'data: {"usage": nonsense', "error"),
        (b'data: ["usage"]', "error"),
        (b'data: "usage"', "error"),
    ],
)
def test_an_event_is_taken_for_what_it_is(event: bytes, kind: EventKind) -> None:
    reader = reading()
    assert reader.read(event) == kind
    assert (reader.done, reader.failed, reader.usage) == (kind == "done", kind == "error", None)


@pytest.mark.parametrize(
    "event",
    [
        orjson.dumps(chunk(usage=USAGE)),
        orjson.dumps(chunk(usage=USAGE), option=orjson.OPT_INDENT_2).replace(b"\n", b" "),
        orjson.dumps({"usage": USAGE}),
    ],
    ids=["compact", "spaced", "alone"],
)
def test_usage_is_found_however_it_is_written(event: bytes) -> None:
    reader = reading()
    assert reader.read(b"data: " + event) == "usage"
    assert reader.usage == TOLD


def test_usage_beside_content_is_content_and_not_that_of_the_answer() -> None:
    reader = reading()
    early: dict[str, Any] = {**USAGE, "completion_tokens": 1}
    assert reader.read(b"data: " + orjson.dumps({**delta("Hel"), "usage": early})) == "content"
    assert reader.read(b"data: " + orjson.dumps({**delta("lo"), "usage": None})) == "content"
    assert reader.usage is None
    assert reader.read(b"data: " + orjson.dumps(chunk(usage=USAGE))) == "usage"
    assert reader.usage == TOLD


@pytest.mark.parametrize("text", ["usage", '"usage"', '{"usage":{"completion_tokens":0}}', '"choices":[]', "[DONE]"])
def test_a_text_about_the_format_is_still_text(text: str) -> None:
    reader = reading()
    assert reader.read(b"data: " + orjson.dumps(delta(text))) == "content"
    assert (reader.usage, reader.done, reader.failed) == (None, False, False)


def test_events_are_kept_up_to_a_size_and_then_not_at_all() -> None:
    reader = reading(keep=True)
    for event in split(b"".join(events(CHUNKS[:3])), 64):
        reader.read(event)
    assert len(reader._events) == 3
    reader.read(b"data: " + orjson.dumps(delta("x" * 1000)))
    assert (reader.keep, reader._events) == (False, [])
    reader.read(b"data: " + orjson.dumps(delta("y")))
    assert reader._events == []


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_a_response_is_read_up_to_its_completion_which_tells_its_usage(size: int) -> None:
    reader = ResponseParser(keep=False)
    kinds = [reader.read(event) for event in split(b"".join(RESPONSE_EVENTS), size)]
    assert kinds == ["head", "head", "head", "head", "content", "content", "head", "head", "head", "done"]
    assert (reader.usage, reader.done, reader.failed) == (TOLD, True, False)
    assert reader.ending == RESPONSE_EVENTS[-1]


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_a_message_is_read_up_to_its_stop_and_its_usage_stands_before(size: int) -> None:
    reader = MessageParser(keep=False)
    kinds = [reader.read(event) for event in split(b"".join(MESSAGE_EVENTS), size)]
    assert kinds == ["head", "head", "content", "content", "head", "head", "done"]
    assert (reader.usage, reader.done, reader.failed) == (usage_of_total(12, 4, 3, written=2), True, False)
    assert reader.ending == MESSAGE_EVENTS[-1]


def test_usage_of_a_message_is_not_known_before_it_is_told_at_the_end() -> None:
    reader = MessageParser(keep=False)
    for event in MESSAGE_EVENTS[:4]:
        reader.read(event.removesuffix(b"\n\n"))
    assert (reader.usage, reader.done) == (None, False)


@pytest.mark.parametrize("delta_type", ["response.reasoning_text.delta", "response.function_call_arguments.delta"])
def test_thoughts_and_arguments_of_a_response_count_as_content(delta_type: str) -> None:
    reader = ResponseParser(keep=False)
    assert reader.read(named(delta_type, delta="x").removesuffix(b"\n\n")) == "content"


def test_the_seal_of_a_thought_is_no_token() -> None:
    event = named("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"})
    assert MessageParser(keep=False).read(event.removesuffix(b"\n\n")) == "head"


@pytest.mark.parametrize(
    ("reader", "event", "kind"),
    [
        (ResponseParser, b"event: response.completed\ndata: nonsense", "error"),
        (ResponseParser, b"event: response.completed\ndata: {}", "error"),
        (ResponseParser, b'event: response.failed\ndata: {"response": {}}', "error"),
        (ResponseParser, b'event: error\ndata: {"type": "error"}', "error"),
        (ResponseParser, b": keep alive", "comment"),
        (MessageParser, b"event: message_delta\ndata: nonsense", "error"),
        (MessageParser, b'event: message_delta\ndata: ["usage"]', "error"),
        (MessageParser, b'event: error\ndata: {"type": "error"}', "error"),
        (MessageParser, b'event: ping\ndata: {"type": "ping"}', "head"),
        (MessageParser, b"", "comment"),
    ],
)
def test_what_cannot_be_read_is_an_error_in_every_protocol(
    reader: type[StreamParser], event: bytes, kind: EventKind
) -> None:
    one = reader(keep=False)
    assert one.read(event) == kind
    assert (one.done, one.failed) == (False, kind == "error")


def test_an_incomplete_response_ends_as_it_is() -> None:
    reader = ResponseParser(keep=False)
    usage = {"input_tokens": 12, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
    event = named("response.incomplete", response={"status": "incomplete", "usage": usage})
    assert reader.read(event.removesuffix(b"\n\n")) == "done"
    assert (reader.usage, reader.ending) == (TOLD, event)


def test_an_error_is_told_in_the_words_of_the_protocol() -> None:
    response = ResponseParser(keep=False)
    for event in RESPONSE_EVENTS[:5]:
        response.read(event.removesuffix(b"\n\n"))
    assert _data(response.error_event(BROKEN)) == {
        "type": "error",
        "code": "engine_failed_mid_stream",
        "message": "It broke.",
        "param": None,
        "sequence_number": 5,
    }
    message = MessageParser(keep=False)
    assert _data(message.error_event(BROKEN)) == {
        "type": "error",
        "error": {"type": "api_error", "message": "It broke."},
    }
    assert _data(reading().error_event(BROKEN))["error"]["code"] == "engine_failed_mid_stream"


@pytest.mark.parametrize("size", [1, 64, 4096])
@pytest.mark.parametrize(
    ("reader", "events", "whole"),
    [(ResponseParser, RESPONSE_EVENTS, RESPONSE), (MessageParser, MESSAGE_EVENTS, MESSAGE)],
)
def test_typed_events_are_also_told_as_the_whole_answer(
    reader: type[StreamParser], events: list[bytes], whole: dict[str, Any], size: int
) -> None:
    one = reader(keep=True)
    for event in split(b"".join(events), size):
        one.read(event)
    assert orjson.loads(one.assemble()) == whole


def test_a_response_that_did_not_come_to_its_end_is_no_answer() -> None:
    reader = ResponseParser(keep=True)
    with pytest.raises(NotReplayable, match="unfinished"):
        reader.assemble()
    reader.read(named("response.completed", response={**RESPONSE, "status": "cancelled"}).removesuffix(b"\n\n"))
    with pytest.raises(NotReplayable, match="unfinished"):
        reader.assemble()


def _data(event: bytes) -> Any:
    assert event.startswith(b"event: error\ndata: ")
    return orjson.loads(event.partition(b"data: ")[2])

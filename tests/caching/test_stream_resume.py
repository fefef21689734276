"""A second run of a request continues where the first one ended, if it begins in the same way."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caching.errors import NotReplayable
from caching.stream_resume import ReplayMatcher


def event(data: dict[str, Any], kind: str = "") -> bytes:
    """Return one server-sent event."""
    return (f"event: {kind}\n".encode() if kind else b"") + b"data: " + orjson.dumps(data) + b"\n\n"


def chunk(run: str, text: str, **delta: Any) -> bytes:
    """Return a chunk of a chat from one run."""
    return event({"id": run, "created": len(run), "choices": [{"index": 0, "delta": {"content": text, **delta}}]})


@settings(max_examples=50)
@given(st.lists(st.text(max_size=5), max_size=8), st.data())
def test_what_was_told_is_left_out_wherever_the_run_ended_and_however_its_pieces_are_cut(
    texts: list[str], data: st.DataObject
) -> None:
    again = [chunk("second", text) for text in texts]
    heard = data.draw(st.integers(0, len(texts)))
    repetition = ReplayMatcher([b"".join(chunk("first", text) for text in texts[:heard])])
    rest, left = b"", again
    while left:
        cut = data.draw(st.integers(1, len(left)))
        rest += repetition.new_events(b"".join(left[:cut]))
        left = left[cut:]
    assert (rest, repetition.complete) == (b"".join(again[heard:]), True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chunk("a", "Hello"), chunk("b", "Good day")),
        (chunk("a", "Hello"), chunk("b", "Hel") + chunk("b", "lo")),
        (chunk("a", "Hello"), event({"id": "b", "created": 1, "choices": []})),
        (chunk("a", "Hello"), b"data: [DONE]\n\n"),
    ],
)
def test_a_run_that_begins_otherwise_is_another_answer(one: bytes, other: bytes) -> None:
    repetition = ReplayMatcher([one])
    assert not repetition.complete
    with pytest.raises(NotReplayable):
        repetition.new_events(other)


def called(run: str) -> dict[str, Any]:
    """Return a tool call with the id of one run."""
    return {"index": 0, "id": f"call-{run}", "function": {"name": "f", "arguments": "{"}}


def message(run: str) -> bytes:
    """Return the first events of a message of one run."""
    begun = event(
        {"type": "message_start", "message": {"id": run, "usage": {"input_tokens": len(run)}}}, "message_start"
    )
    block = {"type": "tool_use", "id": f"call-{run}", "name": "f"}
    return begun + event({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")


def response(run: str) -> bytes:
    """Return the first events of a response of one run."""
    created = {"response": {"id": run, "created_at": len(run), "output": []}, "sequence_number": 0}
    item = {"type": "function_call", "id": f"fc-{run}", "call_id": f"call-{run}", "name": "f"}
    delta = {"item_id": f"fc-{run}", "output_index": 0, "delta": "{", "sequence_number": 2}
    return (
        event(created, "response.created")
        + event({"output_index": 0, "item": item, "sequence_number": 1}, "response.output_item.added")
        + event(delta, "response.function_call_arguments.delta")
    )


@pytest.mark.parametrize(
    "told",
    [lambda run: chunk(run, "", tool_calls=[called(run)]), message, response],
    ids=["chat", "message", "response"],
)
def test_runs_that_differ_in_their_names_alone_tell_the_same(told: Any) -> None:
    repetition = ReplayMatcher([told("first")])
    assert (repetition.new_events(told("the second")), repetition.complete) == (b"", True)


def test_comments_are_nothing_that_was_told() -> None:
    repetition = ReplayMatcher([b": waiting\n\n" + chunk("a", "x")])
    assert repetition.new_events(b": waiting again\n\n" + chunk("b", "x") + chunk("b", "y")) == chunk("b", "y")

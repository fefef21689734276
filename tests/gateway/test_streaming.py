"""However a stream is cut into pieces, its events are the same; and each is taken for what it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.streaming import EventSplitter, Kind, Tally, read
from tests.gateway.engines import CHUNKS, USAGE, chunk, delta, events

event_texts = st.lists(st.binary(max_size=30).filter(lambda one: b"\n" not in one), max_size=8)


def split(pieces: list[bytes]) -> list[bytes]:
    """Feed the pieces to one splitter."""
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def told(event: bytes, tally: Tally | None = None) -> Kind:
    """Read one event."""
    return read(event, tally or Tally(), max_kept_bytes=1000)


@given(event_texts, st.lists(st.integers(0, 300), max_size=20))
def test_any_cut_of_the_bytes_gives_the_same_events(texts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(text + b"\n\n" for text in texts)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    assert split([whole[a:b] for a, b in pairwise(edges)]) == texts


@given(event_texts, st.binary(min_size=1, max_size=20).filter(lambda rest: b"\n" not in rest))
def test_an_event_that_is_not_complete_is_held_back(texts: list[bytes], rest: bytes) -> None:
    assert split([b"".join(text + b"\n\n" for text in texts) + rest]) == texts
    assert split([rest, b"\n", b"\n"]) == [rest]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_real_stream_in_pieces_of_any_size_is_read_the_same(size: int) -> None:
    whole = b"".join(events())
    tally = Tally(keep=True)
    kinds = [told(event, tally) for event in split([whole[i : i + size] for i in range(0, len(whole), size)])]
    assert kinds == ["head", "content", "content", "content", "usage", "done"]
    assert (tally.usage, tally.done, tally.failed) == (USAGE, True, False)


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
def test_an_event_is_taken_for_what_it_is(event: bytes, kind: Kind) -> None:
    tally = Tally()
    assert told(event, tally) == kind
    assert (tally.done, tally.failed, tally.usage) == (kind == "done", kind == "error", None)


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
    tally = Tally()
    assert told(b"data: " + event, tally) == "usage"
    assert tally.usage == USAGE


def test_usage_beside_content_is_content_and_the_last_one_counts() -> None:
    tally = Tally()
    early: dict[str, Any] = {**USAGE, "completion_tokens": 1}
    assert told(b"data: " + orjson.dumps({**delta("Hel"), "usage": early}), tally) == "content"
    assert told(b"data: " + orjson.dumps({**delta("lo"), "usage": None}), tally) == "content"
    assert tally.usage == early
    assert told(b"data: " + orjson.dumps(chunk(usage=USAGE)), tally) == "usage"
    assert tally.usage == USAGE


@pytest.mark.parametrize("text", ["usage", '"usage"', '{"usage":{"completion_tokens":0}}', '"choices":[]', "[DONE]"])
def test_a_text_about_the_format_is_still_text(text: str) -> None:
    tally = Tally()
    assert told(b"data: " + orjson.dumps(delta(text)), tally) == "content"
    assert (tally.usage, tally.done, tally.failed) == (None, False, False)


def test_events_are_kept_up_to_a_size_and_then_not_at_all() -> None:
    tally = Tally(keep=True)
    for event in split([b"".join(events(CHUNKS[:3]))]):
        told(event, tally)
    assert len(tally.events) == 3
    told(b"data: " + orjson.dumps(delta("x" * 1000)), tally)
    assert (tally.keep, tally.events) == (False, [])
    told(b"data: " + orjson.dumps(delta("y")), tally)
    assert tally.events == []

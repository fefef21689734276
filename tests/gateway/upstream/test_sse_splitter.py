"""However a stream is cut into pieces, its events are the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.sse_splitter import EventSplitter

event_texts = st.lists(st.binary(max_size=30).filter(lambda one: b"\n" not in one), max_size=8)


def split(pieces: list[bytes]) -> list[bytes]:
    """Feed the pieces to one splitter."""
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@given(event_texts, st.lists(st.integers(0, 300), max_size=20))
def test_any_cut_of_the_bytes_gives_the_same_events(texts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(text + b"\n\n" for text in texts)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    assert split([whole[a:b] for a, b in pairwise(edges)]) == texts


@given(event_texts, st.binary(min_size=1, max_size=20).filter(lambda rest: b"\n" not in rest))
def test_an_event_that_is_not_complete_is_held_back(texts: list[bytes], rest: bytes) -> None:
    assert split([b"".join(text + b"\n\n" for text in texts) + rest]) == texts
    assert split([rest, b"\n", b"\n"]) == [rest]

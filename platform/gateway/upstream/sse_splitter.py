"""Cut an engine's event stream into events; what they say is read by ``gateway.protocols``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from gateway.upstream.connection import UpstreamError

SEPARATOR = b"\n\n"
#: Far over a real event: the longest repeats a whole answer, or tells its log-probabilities.
MAX_EVENT_BYTES = 8 << 20


class EventTooLong(UpstreamError):
    """What an engine sends has no end: it is no stream of events."""


class EventSplitter:
    """Cut bytes into whole server-sent events; an event may arrive in any number of pieces."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = b""
        self._max_event_bytes = max_event_bytes

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that are complete now, without their separator; then raise EventTooLong if need be."""
        data = self._rest + piece if self._rest else piece
        *events, self._rest = data.split(SEPARATOR)
        yield from events
        if len(self._rest) > self._max_event_bytes:
            raise EventTooLong(f"an event of more than {self._max_event_bytes} bytes")


async def pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece, then the rest."""
    yield first
    async for piece in rest:
        yield piece

"""Split an engine's event stream into events; ``gateway.protocols`` parses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from gateway.upstream.connection import UpstreamError

SEPARATOR = b"\n\n"
#: Far above a real event: the longest repeats a whole response, or has its log-probabilities.
MAX_EVENT_BYTES = 8 << 20


class EventTooLong(UpstreamError):
    """An engine sent more than MAX_EVENT_BYTES without the end of an event."""


class EventSplitter:
    """Split bytes into server-sent events; an event may arrive in any number of pieces."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = b""
        self._max_event_bytes = max_event_bytes

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that are complete, without their separator. Raises EventTooLong after them."""
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

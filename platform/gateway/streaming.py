"""Cut an engine's event stream into events; what they say is read by ``gateway.wire``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

SEPARATOR = b"\n\n"


class EventSplitter:
    """Cut bytes into whole server-sent events; an event may arrive in any number of pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that are complete now, without their separator."""
        data = self._rest + piece if self._rest else piece
        *events, self._rest = data.split(SEPARATOR)
        yield from events


async def pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece, then the rest."""
    yield first
    async for piece in rest:
        yield piece

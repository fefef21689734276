"""Pass an engine's event stream on, keep count, and hold its last event until the usage record is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

SEPARATOR = b"\n\n"
DONE = b"data: [DONE]"
#: The usage chunk is the one without choices (OpenAI, stream_options.include_usage).
_USAGE_MARK = b'"choices":[]'
#: A chat stream opens with the role, which is no token.
_ROLE_MARK = b'"delta":{"role":'


@dataclass(slots=True)
class Tally:
    """What a stream has told so far. ``events`` is kept only when the answer may be stored."""

    keep: bool = False
    usage: dict[str, Any] | None = None
    done: bool = False
    failed: bool = False
    events: list[bytes] = field(default_factory=list)
    kept_bytes: int = 0


class EventSplitter:
    """Cut bytes into whole server-sent events; an event may arrive in any number of pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the events that are complete now, without their separator."""
        data = self._rest + piece if self._rest else piece
        *events, self._rest = data.split(SEPARATOR)
        yield from events


def read(event: bytes, tally: Tally, *, max_kept_bytes: int) -> str:
    """Take note of one event and say what it is: ``head``, ``content``, ``usage``, ``done`` or ``error``."""
    if event.startswith(DONE):
        tally.done = True
        return "done"
    if event.startswith((b"event: error", b'data: {"error"')):
        tally.failed = True
        return "error"
    if tally.keep:
        tally.events.append(event)
        tally.kept_bytes += len(event)
        if tally.kept_bytes > max_kept_bytes:
            tally.keep = False
            tally.events.clear()
    if _USAGE_MARK in event:
        tally.usage = orjson.loads(event.removeprefix(b"data:").strip()).get("usage") or tally.usage
        return "usage"
    return "head" if _ROLE_MARK in event else "content"


async def pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece, then the rest."""
    yield first
    async for piece in rest:
        yield piece

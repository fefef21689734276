"""Pass an engine's event stream on, keep count, and hold its last event until the usage record is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

SEPARATOR = b"\n\n"
DONE = b"data: [DONE]"
_USAGE_MARK = b'"usage"'
#: A chat stream opens with the role, which is no token.
_ROLE_MARK = b'"delta":{"role":'

Kind = Literal["head", "content", "usage", "done", "error", "comment"]


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


def read(event: bytes, tally: Tally, *, max_kept_bytes: int) -> Kind:
    """Take note of one event and say what it is. An event that cannot be read is an error."""
    if event.startswith(DONE):
        tally.done = True
        return "done"
    if event.startswith((b"event: error", b'data: {"error"')):
        tally.failed = True
        return "error"
    if not event.startswith(b"data:"):
        return "comment"
    if tally.keep:
        tally.events.append(event)
        tally.kept_bytes += len(event)
        if tally.kept_bytes > max_kept_bytes:
            tally.keep = False
            tally.events.clear()
    if _USAGE_MARK in event and not _note_usage(event, tally):
        return "error" if tally.failed else "usage"
    return "head" if _ROLE_MARK in event else "content"


def _note_usage(event: bytes, tally: Tally) -> bool:
    """Say whether the event has choices too; the usage chunk is the one without (OpenAI, ``include_usage``)."""
    try:
        chunk = orjson.loads(event.removeprefix(b"data:"))
        tally.usage = chunk.get("usage") or tally.usage
        return bool(chunk.get("choices"))
    except (orjson.JSONDecodeError, AttributeError):
        tally.failed = True
        return False


async def pieces(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first piece, then the rest."""
    yield first
    async for piece in rest:
        yield piece

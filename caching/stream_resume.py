"""Tell whether a second run of a request begins as the first one did, and what of it is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from caching.errors import NotReplayable

SEPARATOR = b"\n\n"
#: What names a run, or one of its parts, and says nothing of its answer.
_NAMES = frozenset({"id", "item_id", "call_id", "created", "created_at", "system_fingerprint", "usage"})


class ReplayMatcher:
    """Leaves out of a stream of events what was told before. Events count as equal that differ in names of runs only.

    Calls of tools are named too: a client that has heard of one knows it by its first name and its place.
    """

    def __init__(self, told: list[bytes]) -> None:
        """``told``: whole events, with their separators."""
        self._told = list(_events(told))
        self._at = 0

    def new_events(self, events: bytes) -> bytes:
        """Return what of these whole events is new. Raises NotReplayable where they are not what was told."""
        new = []
        for event in _events([events]):
            if self._at == len(self._told):
                new.append(event + SEPARATOR)
            elif not _same(event, self._told[self._at]):
                raise NotReplayable("another answer")
            else:
                self._at += 1
        return b"".join(new)

    @property
    def complete(self) -> bool:
        """Say whether all that was told has come again."""
        return self._at == len(self._told)


def _events(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (event for event in piece.split(SEPARATOR) if event and not event.startswith(b":"))


def _same(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    try:
        return bool(_nameless(_data(one)) == _nameless(_data(other)))
    except orjson.JSONDecodeError:
        return False


def _data(event: bytes) -> Any:
    lines = [line.removeprefix(b"data:") for line in event.split(b"\n") if line.startswith(b"data:")]
    return orjson.loads(b"".join(lines))


def _nameless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nameless(inner) for name, inner in value.items() if name not in _NAMES}
    if isinstance(value, list):
        return [_nameless(inner) for inner in value]
    return value

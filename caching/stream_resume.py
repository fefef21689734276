"""Check whether a second run of a request begins like the first one, and return what is new in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from caching.errors import NotReplayable

SEPARATOR = b"\n\n"
#: Fields that identify a run or a part of it, and are not part of its content.
_IDS = frozenset({"id", "item_id", "call_id", "created", "created_at", "system_fingerprint", "usage"})


class ReplayMatcher:
    """Removes from a stream the events sent before. Events that differ only in ids count as equal.

    That includes ids of tool calls: a client knows a call by the id of the first run and its index.
    """

    def __init__(self, sent: list[bytes]) -> None:
        """``sent``: whole events, with their separators."""
        self._sent = list(_events(sent))
        self._at = 0

    def new_events(self, events: bytes) -> bytes:
        """Return the new ones of these whole events. Raises NotReplayable if they differ from what was sent."""
        new = []
        for event in _events([events]):
            if self._at == len(self._sent):
                new.append(event + SEPARATOR)
            elif not _same(event, self._sent[self._at]):
                raise NotReplayable("another response")
            else:
                self._at += 1
        return b"".join(new)

    @property
    def complete(self) -> bool:
        """Whether all events sent before have been matched."""
        return self._at == len(self._sent)


def _events(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from (event for event in piece.split(SEPARATOR) if event and not event.startswith(b":"))


def _same(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    try:
        return bool(_without_ids(_data(one)) == _without_ids(_data(other)))
    except orjson.JSONDecodeError:
        return False


def _data(event: bytes) -> Any:
    lines = [line.removeprefix(b"data:") for line in event.split(b"\n") if line.startswith(b"data:")]
    return orjson.loads(b"".join(lines))


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_ids(inner) for name, inner in value.items() if name not in _IDS}
    if isinstance(value, list):
        return [_without_ids(inner) for inner in value]
    return value

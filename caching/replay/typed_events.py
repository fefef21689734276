"""Server-sent events with a type, as in streams of Anthropic messages and OpenAI responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from caching.errors import NotReplayable


def event(kind: str, fields: dict[str, Any]) -> bytes:
    """Return one event. Its type is in its data too, as in both protocols."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def parsed(events: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the data of each event. Raises NotReplayable for data that is not an object with a type."""
    for raw in events:
        try:
            data = orjson.loads(raw.partition(b"data:")[2])
        except orjson.JSONDecodeError as error:
            raise NotReplayable("malformed") from error
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            raise NotReplayable("malformed")
        yield data

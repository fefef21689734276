"""Events that name their type, as Anthropic's messages and OpenAI's responses are streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from caching.errors import NotReplayable


def event(kind: str, fields: dict[str, Any]) -> bytes:
    """Return one event; its type stands in its data too, as both protocols have it."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def parsed(events: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the data of each event. Raises NotReplayable for what is not an object with a type."""
    for raw in events:
        try:
            data = orjson.loads(raw.partition(b"data:")[2])
        except orjson.JSONDecodeError as error:
            raise NotReplayable("malformed") from error
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            raise NotReplayable("malformed")
        yield data

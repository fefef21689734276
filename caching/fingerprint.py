"""The canonical form of a request: equal bytes exactly if the engine would receive equivalent input."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import orjson

#: Fields that cannot change a response, so they are not part of its name.
IGNORED = frozenset(
    {
        "stream",
        "stream_options",
        "user",
        "safety_identifier",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
    }
)

#: Version of the canonical form. A change makes every stored response unreachable.
FORMAT = "hearth-prediction-1"

#: Numbers inside lists and objects are normalised in requests of at most this many values. That takes about 2 ms, which
#: blocks the event loop (10 MiB of numbers took 470 ms). Commas inside texts count as values too.
WALKED_VALUES = 16 * 1024
#: Up to this many messages with this many fields each are checked one by one for numbers; beyond, the text is searched.
FLAT_MESSAGES, FLAT_FIELDS = 1000, 16


def canonical(body: Mapping[str, Any], ignored: Set[str] = IGNORED) -> bytes:
    """Return the request as canonical JSON, similar to RFC 8785.

    Keys are sorted, white space is removed, and a whole number below 2**53 has one form (1.0 and -0.0 become 1 and 0);
    beyond WALKED_VALUES only top-level numbers are normalised. Fields in ``ignored`` are left out; all others stay,
    including unknown ones, and null differs from absent. Lists keep their order and strings their bytes. Raises
    TypeError for more than 254 levels.
    """
    kept = {
        name: _number(value) if type(value) is float else value for name, value in body.items() if name not in ignored
    }
    text = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    # orjson writes every float that _number changes with ".0"; without one there is nothing to change
    if _is_flat(kept) or b".0" not in text or text.count(b",") > WALKED_VALUES:
        return text
    return orjson.dumps(_plain(kept), option=orjson.OPT_SORT_KEYS)


def _is_flat(kept: Mapping[str, Any]) -> bool:
    """Return whether lists and objects contain only text, as in most chats. Saves a search of long ones."""
    for value in kept.values():
        if isinstance(value, dict):
            return False
        if isinstance(value, list):
            if len(value) > FLAT_MESSAGES:
                return False
            for item in value:
                if not isinstance(item, dict) or len(item) > FLAT_FIELDS:
                    return False
                for inner in item.values():
                    if not isinstance(inner, str):
                        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return _number(value)


def _number(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() and abs(value) < 2**53 else value

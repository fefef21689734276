"""The canonical form of a request: equal bytes exactly when the engine would be asked the same thing."""

from __future__ import annotations

from typing import Any, Literal, get_args

import orjson

from tenants.scopes import CacheMode

#: Fields that cannot change an answer, so they are not part of its name.
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

#: Version of the canonical form; a change of it makes every stored answer unreachable.
FORMAT = b"hearth-prediction-1"

Bypass = Literal["off", "sampled", "no-store", "no-cache", "stateful", "endpoint"]
BYPASSES: tuple[str, ...] = get_args(Bypass)

#: Numbers inside lists and objects are rewritten in requests up to this size; it takes about 2 ms, and nobody else is
#: served meanwhile (10 MiB of numbers took 470 ms).
WALKED_BYTES = 32 * 1024


def canonical(body: dict[str, Any]) -> bytes:
    """Return the request as canonical JSON, in the manner of RFC 8785.

    Keys are sorted, white space is gone, a whole number below 2**53 is written one way (1.0 is 1); beyond WALKED_BYTES
    that holds only for a field that is a number itself. Fields of IGNORED are left out; all others stay, unknown ones
    too. Lists keep their order and strings their bytes. Raises TypeError for more than 254 levels.
    """
    kept = {name: _number(value) for name, value in body.items() if name not in IGNORED}
    text = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    # orjson writes every float that _number rewrites with ".0": without one there is nothing to walk for
    if b".0" not in text or len(text) > WALKED_BYTES:
        return text
    return orjson.dumps(_plain(kept), option=orjson.OPT_SORT_KEYS)


def bypass_reason(
    body: dict[str, Any], mode: CacheMode, cache_control: str, *, always_deterministic: bool = False
) -> Bypass | None:
    """Say why this request may not be answered from the cache, or None when it may.

    ``mode`` is the tenant's policy: ``deterministic`` caches what is asked with temperature 0, top_k 1 or a seed, and
    what can only be answered in one way (embeddings: ``always_deterministic``).
    ``cache_control`` is the request's header: no-store neither reads nor writes, no-cache writes only.
    """
    directives = {part.strip().lower() for part in cache_control.split(",")}
    if mode == "off":
        return "off"
    if "no-store" in directives:
        return "no-store"
    if body.get("previous_response_id") is not None:
        return "stateful"
    if mode == "deterministic" and not (always_deterministic or is_deterministic(body)):
        return "sampled"
    # last, because it is the only one that still writes
    return "no-cache" if "no-cache" in directives else None


def is_deterministic(body: dict[str, Any]) -> bool:
    """Say whether the request asks for the same answer each time: temperature 0, top_k 1 or a seed."""
    return body.get("temperature") == 0 or body.get("top_k") == 1 or body.get("seed") is not None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return _number(value)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value

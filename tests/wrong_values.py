"""JSON values of every type, and bodies in which they replace a field: what property tests of both APIs send."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Place = tuple[str | int, ...]

#: One value of each type, and those that a check of the type alone lets pass.
VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "x", [], [-1], {}, {"x": 1})
_SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
ANY_JSON = st.recursive(
    _SCALARS | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "uuid": "u"}
_MESSAGES = [
    {"role": "system", "content": "Be brief"},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}, _IMAGE]},
]
_COMMON: dict[str, Any] = {
    "model": "demo",
    "stream": False,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "max_tokens": 4,
    "n": 1,
    "seed": 1,
    "stop": ["x"],
    "temperature": 0,
    "top_p": 1,
    "top_k": 1,
    "logprobs": None,
    "prompt_logprobs": None,
    "tools": [_TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "metadata": {"user_id": "ada"},
    "user": "ada",
    "prompt_cache_key": "k",
    "cache_salt": "x",
    "priority": 1,
}
_INPUT = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]
_BLOCKS = [
    {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
    {"type": "image", "source": {"type": "base64", "data": "AA", "media_type": "image/png"}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}]},
]
_ANTHROPIC = {**_COMMON, "messages": [{"role": "user", "content": _BLOCKS}], "system": [{"type": "text", "text": "Be"}]}
#: A body of each endpoint with every field that the gateway, its cache or its routing may read.
_RESPONSES: dict[str, Any] = {
    **_COMMON,
    "input": _INPUT,
    "instructions": "Be brief",
    "max_output_tokens": 4,
    "store": False,
    "background": False,
    "previous_response_id": None,
    "conversation": None,
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**_COMMON, "messages": _MESSAGES, "max_completion_tokens": 4},
    "/v1/completions": {**_COMMON, "prompt": ["Once", "Twice"]},
    "/v1/responses": _RESPONSES,
    "/v1/responses/input_tokens": _RESPONSES,
    "/v1/embeddings": {**_COMMON, "input": ["Hello"], "messages": None, "encoding_format": "float", "dimensions": None},
    "/v1/messages": _ANTHROPIC,
    "/v1/messages/count_tokens": _ANTHROPIC,
    "/v1/tokenize": {**_COMMON, "prompt": "Hello", "messages": _MESSAGES},
    "/v1/detokenize": {**_COMMON, "tokens": [1, 2]},
}


def places(body: Any, above: Place = (), *, depth: int = 9) -> Iterator[Place]:
    """Yield the place of each field and each item in a body, down to ``depth``."""
    if depth == 0:
        return
    inner: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(body, dict):
        inner = iter(body.items())
    elif isinstance(body, list):
        inner = iter(enumerate(body))
    for name, value in inner:
        yield (*above, name)
        yield from places(value, (*above, name), depth=depth - 1)


def replaced(body: Any, changes: dict[Place, Any]) -> Any:
    """Return a copy of the body with these values at these places; a place that another change removed is skipped."""
    changed = copy.deepcopy(body)
    for place, value in changes.items():
        holder = changed
        try:
            for name in place[:-1]:
                holder = holder[name]
            if isinstance(holder, dict) == isinstance(place[-1], str):
                holder[place[-1]] = copy.deepcopy(value)
        except (TypeError, LookupError):
            continue
    return changed

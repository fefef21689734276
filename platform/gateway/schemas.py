"""Read a request body: check what the gateway relies on, leave the rest to the engine.

Fields that would break isolation or fairness are dropped; unknown ones pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.errors import BadRequest

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]

#: What a client may not say to an engine: another tenant's cache, a place in the queue, an engine's own plumbing.
STRIPPED = (
    "cache_salt",
    "priority",
    "session_id",
    "request_id",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
)

MAX_NAME_LENGTH = 200
#: What orjson writes; it reads up to 1024, and whatever cannot be written cannot be sent on.
MAX_DEPTH = 254
#: Reading half a million small lists held everybody up for 0.4 s (Python's garbage collector looks at each). Brackets
#: inside texts count too; a text with so many is some hundred thousand tokens long.
MAX_BRACKETS = 200_000
#: Each message costs some 2 µs on the loop that serves everybody.
MAX_MESSAGES = 4096
#: Choices of one request, n of each prompt: vLLM alone would start up to 16,384 for each.
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked inference request. ``body`` is without the stripped fields."""

    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    #: Tokens the client lets the engine write for each choice; None leaves it to the model's context.
    max_new_tokens: int | None
    #: Answers that are written: n for each prompt.
    choices: int


def parse(endpoint: Endpoint, raw: bytes) -> Call:
    """Return the checked request. Raises BadRequest naming the field, what was found and what is allowed."""
    body = _read(raw)
    for name, check in _FIELDS[endpoint].items():
        if body.get(name) is not None:
            check(name, body[name])
    model = body.get("model")
    if not model:
        raise BadRequest("Name the model: 'model' is missing.", "missing_field", "model")
    required = "messages" if endpoint == "/v1/chat/completions" else "prompt"
    if body.get(required) is None:
        raise BadRequest(f"'{required}' is missing.", "missing_field", required)
    for name in STRIPPED:
        body.pop(name, None)
    choices = (body.get("n") or 1) * (_prompts(body["prompt"]) if required == "prompt" else 1)
    if choices > MAX_CHOICES:
        raise BadRequest(
            f"The request asks for {choices} choices, n of each prompt; allowed are {MAX_CHOICES}.",
            "invalid_value",
            "n",
        )
    options = body.get("stream_options") or {}
    limits = [body.get("max_completion_tokens"), body.get("max_tokens")]
    return Call(
        endpoint=endpoint,
        body=body,
        model=model,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        max_new_tokens=next((limit for limit in limits if limit is not None), None),
        choices=choices,
    )


def _read(raw: bytes) -> dict[str, Any]:
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > MAX_BRACKETS:
        raise BadRequest(f"The body opens {brackets} brackets; allowed are {MAX_BRACKETS}.", "invalid_value")
    try:
        body = orjson.loads(raw)
        if brackets > MAX_DEPTH:
            orjson.dumps(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", "invalid_json") from None
    except TypeError:
        raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.", "invalid_value") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.", "invalid_type")
    return body


def _prompts(prompt: str | list[Any]) -> int:
    """Return how many prompts a completion has: a list of token ids is one."""
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1


def _wrong(name: str, value: Any, allowed: str) -> BadRequest:
    return BadRequest(f"'{name}' is {_kind(value)}; allowed is {allowed}.", "invalid_type", name)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
        raise _wrong(name, value, f"a string of at most {MAX_NAME_LENGTH} characters")


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value, "a number")


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, "a whole number of at least 1")
    if value < 1:
        raise BadRequest(f"'{name}' is {value}; allowed is a whole number of at least 1.", "invalid_value", name)


def _messages(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise _wrong(name, value, "a list of messages")
    if not value:
        raise BadRequest("'messages' is empty; it needs at least one message.", "invalid_value", name)
    if len(value) > MAX_MESSAGES:
        raise BadRequest(f"'messages' has {len(value)} messages; allowed are {MAX_MESSAGES}.", "invalid_value", name)
    for position, message in enumerate(value):
        where = f"{name}[{position}]"
        if not isinstance(message, dict):
            raise _wrong(where, message, "an object with a role")
        if not isinstance(message.get("role"), str):
            raise _wrong(f"{where}.role", message.get("role"), "a string")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise _wrong(f"{where}.content", content, "a string, a list of parts, or null")


def _prompt(name: str, value: Any) -> None:
    if not isinstance(value, str | list) or not value:
        raise _wrong(name, value, "a string, a list of strings or a list of token ids, not empty")


_Check = Callable[[str, Any], None]
_COMMON: dict[str, _Check] = {
    "model": _text,
    "stream": _boolean,
    "stream_options": _object,
    "max_tokens": _count,
    "n": _count,
    "temperature": _number,
    "top_p": _number,
    "user": _text,
    "prompt_cache_key": _text,
}
_FIELDS: Mapping[Endpoint, dict[str, _Check]] = {
    "/v1/chat/completions": {**_COMMON, "messages": _messages, "max_completion_tokens": _count},
    "/v1/completions": {**_COMMON, "prompt": _prompt},
}

"""Read a request body: check what the gateway relies on, leave the rest to the engine.

Fields that would break isolation or fairness are dropped; unknown ones pass through.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from gateway.errors import BadRequest
from gateway.protocols.endpoint import Endpoint

#: What a client may not say to an engine: another tenant's cache, a place in the queue, an engine's own plumbing; and
#: how many tokens make an event (``stream_interval``), as a stream that is cut is charged by its events.
STRIPPED = (
    "cache_salt",
    "priority",
    "session_id",
    "request_id",
    "data_parallel_rank",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "stream_interval",
)
_STRIPPED = frozenset(STRIPPED)

#: What orjson writes; it reads up to 1024, and whatever cannot be written cannot be sent on.
MAX_DEPTH = 254
#: Reading half a million small lists held everybody up for 0.4 s (Python's garbage collector looks at each). Brackets
#: inside texts count too; a text with so many is some hundred thousand tokens long.
MAX_BRACKETS = 200_000
#: Choices of one request, n of each prompt: vLLM alone would start up to 16,384 for each.
MAX_CHOICES = 128


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A checked inference request. ``body`` is without the stripped fields."""

    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    #: Tokens the client lets the engine write for each choice; None leaves it to the model's context.
    max_new_tokens: int | None
    #: Answers that are written: n for each prompt, 0 where no token is.
    choices: int
    #: SHA-256 of its canonical form (``caching.fingerprint``), where that is known from before.
    digest: bytes | None = None

    @property
    def path(self) -> str:
        """The path that was asked."""
        return self.endpoint.path

    def render(self, body: bytes) -> bytes | None:
        """Return a kept answer as this request wants it; None where that cannot be."""
        return self.endpoint.render(body, stream=self.stream, include_usage=self.include_usage)


def parse(endpoint: Endpoint, raw: bytes) -> Call:
    """Return the checked request. Raises BadRequest naming the field, what was found and what is allowed."""
    body = _read(raw)
    for name, value in body.items():
        if value is not None and (check := endpoint.checks.get(name)) is not None:
            check(name, value)
    model = body.get("model")
    if not model:
        raise BadRequest("Name the model: 'model' is missing.", "missing_field", "model")
    for name in endpoint.required:
        if body.get(name) is None:
            raise BadRequest(f"'{name}' is missing.", "missing_field", name)
    if not _STRIPPED.isdisjoint(body):
        for name in STRIPPED:
            body.pop(name, None)
    endpoint.prepare(body)
    choices = endpoint.choices(body)
    if choices > MAX_CHOICES:
        raise BadRequest(
            f"The request asks for {choices} choices, n of each prompt; allowed are {MAX_CHOICES}.",
            "invalid_value",
            "n",
        )
    stream = bool(body.get("stream"))
    if stream and not endpoint.streams:
        raise BadRequest(f"{endpoint.path} does not stream; leave 'stream' out.", "invalid_value", "stream")
    return Call(
        endpoint=endpoint,
        body=body,
        model=model,
        stream=stream,
        include_usage=endpoint.wants_usage(body),
        max_new_tokens=endpoint.max_new_tokens(body),
        choices=choices,
    )


def _read(raw: bytes) -> dict[str, Any]:
    levels = len(raw) // 2  # at most: most bodies are text, which takes less to write than its brackets to count
    if len(raw) > MAX_BRACKETS:
        levels = raw.count(b"[") + raw.count(b"{")
        if levels > MAX_BRACKETS:
            raise BadRequest(f"The body opens {levels} brackets; allowed are {MAX_BRACKETS}.", "invalid_value")
    try:
        body = orjson.loads(raw)
        if levels > MAX_DEPTH:
            orjson.dumps(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", "invalid_json") from None
    except TypeError:
        raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.", "invalid_value") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.", "invalid_type")
    return body

"""Parse a request body and check the fields that the gateway relies on; the engine checks the rest.

Fields that engines need not or may not have are dropped (``gateway.protocols.engine_fields``).
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from gateway.errors import BadRequest
from gateway.protocols import engine_fields
from gateway.protocols.body_facts import BodyFacts, end_user_in
from gateway.protocols.endpoint import Endpoint

#: The first bytes of gzip (RFC 1952).
_GZIP = b"\x1f\x8b"

#: The depth that orjson can write. It reads up to 1024, but what cannot be written cannot be sent to the engine.
MAX_DEPTH = 254
#: Parsing half a million small lists blocked the event loop for 0.4 s, because Python's garbage collector visits each.
#: Brackets inside texts count too; a text with this many is about a hundred thousand tokens long.
MAX_BRACKETS = 200_000
#: Top-level fields. OpenAI and vLLM know fewer than a hundred.
MAX_FIELDS = 1000
#: Fields whose values the gateway reads after a body was parsed, and the largest that it reads of a large body.
READ_FIELDS = frozenset(
    {"metadata", "model", "n", "seed", "stream", "stream_options", "temperature", "top_k", "top_p"}
    | {"max_tokens", "max_completion_tokens", "max_output_tokens", "safety_identifier", "user"}
)
MAX_READ_BYTES = 16_384
#: Choices of one request, n of each prompt. vLLM itself would start up to 16,384 for each prompt.
MAX_CHOICES = 128


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A checked inference request. ``body`` contains only the fields in ``engine_fields.KNOWN``.

    With ``facts`` only its READ_FIELDS are decoded; the others are JSON text (``orjson.Fragment``).
    """

    endpoint: Endpoint
    body: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    #: Tokens the client lets the engine write for each choice; None leaves it to the model's context.
    max_new_tokens: int | None
    #: Completions that the engine writes: n for each prompt; 0 where it writes no token.
    choices: int
    #: SHA-256 of the canonical form (``caching.fingerprint``) if an identical body was parsed before.
    digest: bytes | None = None
    #: What was computed about a large body where it was parsed.
    facts: BodyFacts | None = None

    @property
    def path(self) -> str:
        """Return the path of the endpoint."""
        return self.endpoint.path

    @property
    def tags(self) -> dict[str, str]:
        """Return the caller's tags."""
        return self.endpoint.tags(self.body)

    @property
    def end_user(self) -> str:
        """Return whom the caller serves with this request, in its words; empty if it does not say."""
        return end_user_in(self.body)

    def render(self, body: bytes) -> bytes | None:
        """Return a stored response in the shape that this request asks for; None if it has no such shape."""
        return self.endpoint.render(body, stream=self.stream, include_usage=self.include_usage)


def parse(endpoint: Endpoint, raw: bytes) -> Call:
    """Return the checked request. Raises BadRequest with the field, what was found and what is allowed."""
    body = _read(raw)
    for name, value in body.items():
        if value is not None and (check := endpoint.checks.get(name)) is not None:
            check(name, value)
    model = body.get("model")
    if not model:
        raise BadRequest("'model' is missing. Send the name of a model.", "missing_field", "model")
    for name in endpoint.required:
        if body.get(name) is None:
            raise BadRequest(f"'{name}' is missing. {endpoint.path} requires it.", "missing_field", name)
    engine_fields.restrict(body)
    endpoint.prepare(body)
    choices = endpoint.choices(body)
    if choices > MAX_CHOICES:
        raise BadRequest(
            f"The request asks for {choices} choices (n for each prompt). At most {MAX_CHOICES} are allowed.",
            "invalid_value",
            "n",
        )
    stream = bool(body.get("stream"))
    if stream and not endpoint.streams:
        raise BadRequest(f"{endpoint.path} does not support streaming. Remove 'stream'.", "invalid_value", "stream")
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
    levels = len(raw) // 2  # an upper bound: for most bodies, which are text, dumping is cheaper than counting brackets
    if len(raw) > MAX_BRACKETS:
        levels = raw.count(b"[") + raw.count(b"{")
        if levels > MAX_BRACKETS:
            raise BadRequest(
                f"The body has {levels} opening brackets. At most {MAX_BRACKETS} are allowed.", "invalid_value"
            )
    try:
        body = orjson.loads(raw)
        if levels > MAX_DEPTH:
            orjson.dumps(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(_unreadable(raw, error), "invalid_json") from None
    except TypeError:
        raise BadRequest(
            f"The body is nested too deeply. At most {MAX_DEPTH} levels are allowed.", "invalid_value"
        ) from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.", "invalid_type")
    if len(body) > MAX_FIELDS:
        raise BadRequest(f"The body has {len(body)} fields. At most {MAX_FIELDS} are allowed.", "invalid_value")
    return body


def _unreadable(raw: bytes, error: ValueError) -> str:
    """Return why the body is not valid JSON."""
    if raw.startswith(_GZIP):
        return "The body is compressed with gzip, which Hearth does not accept. Send it uncompressed."
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return f"The body is not valid JSON: byte {wrong.start} is not UTF-8."
    return f"The body is not valid JSON: {error}."

"""The interface of an endpoint: the format of its requests, responses, streams and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec
import orjson

from caching.errors import NotReplayable
from caching.fingerprint import IGNORED
from gateway.errors import GatewayError, Headers
from gateway.protocols.stream_token_counts import TokenCounts
from gateway.protocols.validators import Check
from routing.prefixes.prefix_hash import PromptMessage

#: The kinds of stream events. ``content`` counts as a token when the stream is cut; ``usage`` is passed on only to a
#: client that requested it; ``done`` ends the stream and is sent once the END is written.
EventKind = Literal["head", "content", "usage", "done", "error", "comment"]
#: Which responses the prediction cache may store: none, those not streamed, or both shapes as one entry.
Cacheable = Literal["never", "whole", "both"]

#: Why a response ended, in OpenAI's words whatever the protocol: an engine's other words are kept as they are.
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "refusal": "content_filter",
}

#: The events of a storable response are buffered until its end, about 200 bytes a token: 16,000 tokens fit.
MAX_KEPT_BYTES = 4 << 20
#: Events that are assembled on the event loop, which takes 1 ms; more (8,000 tokens: 30 ms) in a thread.
INLINE_BYTES = 128 * 1024


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one request as the engine reported them; cached and other prompt tokens are disjoint."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    #: Those of ``prompt_tokens`` that the engine wrote to its cache, and of ``completion_tokens`` that were reasoning.
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    #: The whole prompt and completion as the engine counted them; None: it did not.
    reported_prompt_tokens: int | None = None
    reported_completion_tokens: int | None = None


#: The usage of a request that is charged for no token.
NOTHING = Usage(prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0)


def finish_reason_of(word: Any) -> str:
    """Return why a response ended, from the engine's word for it; empty for none."""
    return FINISH_REASONS.get(word, word) if isinstance(word, str) else ""


def usage_of_total(prompt: Any, cached: Any, completion: Any, *, written: Any = 0, reasoning: Any = 0) -> Usage:
    """Return the usage from a prompt count that includes the cached tokens, as OpenAI's objects count.

    ``written`` are the uncached tokens that went to the engine's cache, ``reasoning`` a part of the completion. An
    engine that does not say has none. No part is larger than its whole: an engine with several prompts says the whole
    of all, and parts of one.
    """
    total, new = int(prompt or 0), int(completion or 0)
    warm = min(int(cached or 0), total)
    return Usage(
        prompt_tokens=total - warm,
        cached_prompt_tokens=warm,
        completion_tokens=new,
        cache_write_tokens=max(0, min(int(written or 0), total - warm)),
        reasoning_tokens=max(0, min(int(reasoning or 0), new)),
        reported_prompt_tokens=total,
        reported_completion_tokens=new,
    )


class StreamParser:
    """Parses the events of one stream, mostly by comparing a few bytes."""

    __slots__ = (
        "_events",
        "_kept_bytes",
        "_max_kept_bytes",
        "done",
        "ending",
        "failed",
        "finish_reason",
        "keep",
        "usage",
    )

    def __init__(self, *, keep: bool, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        #: Buffer the events; False once the response is not storable or too large.
        self.keep = keep
        #: The usage that the engine reported at the end; None until then.
        self.usage: Usage | None = None
        #: Why the response ended (:data:`FINISH_REASONS`), known with the usage; empty until then.
        self.finish_reason = ""
        self.done = False
        #: The engine sent an error, or an event that is not valid.
        self.failed = False
        #: The stream's last bytes, once ``done``; sent after the END is written.
        self.ending = b""
        self._events: list[bytes] = []
        self._kept_bytes = 0
        self._max_kept_bytes = max_kept_bytes

    def read(self, event: bytes) -> EventKind:
        """Parse one event, without its separator, and return its kind."""
        raise NotImplementedError

    def assemble(self) -> bytes:
        """Return the response as non-streamed JSON. Raises NotReplayable. Any thread may call it."""
        raise NotReplayable("stream")

    async def assembled(self) -> bytes:
        """Return :meth:`assemble`, in a thread if it takes long. Raises NotReplayable, also for malformed events."""
        try:
            if self._kept_bytes <= INLINE_BYTES:
                return self.assemble()
            return await asyncio.to_thread(self.assemble)
        except (TypeError, RecursionError) as error:
            raise NotReplayable("malformed") from error

    def error_event(self, error: GatewayError) -> bytes:
        """Return the error as an event of this stream."""
        return error.event()

    def _keep_event(self, event: bytes) -> None:
        self._events.append(event)
        self._kept_bytes += len(event)
        if self._kept_bytes > self._max_kept_bytes:
            self.keep = False
            self._events.clear()


class Endpoint:
    """One endpoint. Instances keep no state of a request, so one serves all requests."""

    #: The path for clients, and the path at engines.
    path: ClassVar[str]
    engine_path: ClassVar[str]
    #: Required fields, in the order in which missing ones are reported.
    required: ClassVar[tuple[str, ...]]
    checks: ClassVar[Mapping[str, Check]]
    #: Fields that limit new tokens; the first one present counts. Empty: the endpoint writes no tokens.
    limits: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[bool] = False
    cacheable: ClassVar[Cacheable] = "never"
    #: Fields that cannot change a response here, so the cache key does not include them.
    ignored: ClassVar[frozenset[str]] = IGNORED
    #: The same request always has the same response.
    deterministic: ClassVar[bool] = False
    #: False: a request costs no tokens and leaves no usage row; it only counts against request limits.
    metered: ClassVar[bool] = True
    #: Fields that only gateways read: the caller's tags may name people, and no engine needs them.
    unsent: ClassVar[frozenset[str]] = frozenset({"metadata"})
    #: The engine accepts a ``cache_salt`` here.
    salted: ClassVar[bool] = True

    @property
    def prompt_field(self) -> str | None:
        """Return the field that holds the prompt; None where either of two may."""
        return self.required[0] if self.required else None

    def prepare(self, body: dict[str, Any]) -> None:
        """Drop, force and check fields that only this endpoint has. Raises BadRequest."""

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return the number of completions."""
        return 1 if self.limits else 0

    def sequences(self, body: Mapping[str, Any]) -> int:
        """Return how many sequences an engine makes of the request."""
        return self.choices(body)

    def max_new_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the limit of new tokens for each choice; None leaves it to the model's context."""
        for name in self.limits:
            value: int | None = body.get(name)
            if value is not None:
                return value
        return None

    def wants_usage(self, body: Mapping[str, Any]) -> bool:
        """Return whether the client requested events of kind ``usage``."""
        return False

    def wants_token_counts(self, body: Mapping[str, Any]) -> bool:
        """Return whether the client requested the tokens of each event, which a coalesced stream does not carry."""
        return False

    def clamp(self, body: dict[str, Any], context_length_tokens: int) -> None:
        """Lower the limits of new tokens to the model's context length.

        That is enough: vLLM itself writes at most what the prompt leaves (``get_max_tokens``), and rejects a limit only
        if it is larger than the whole context (``TokenizeParams``).
        """
        for name in self.limits:
            value = body.get(name)
            if value is not None and value > context_length_tokens:
                body[name] = context_length_tokens

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return the prompt as routing hashes it; empty where engines cache no prefix."""
        return []

    def engine_body(self, body: Mapping[str, Any], *, stream: bool, salt: str, counted: bool = False) -> bytes:
        """Return the body for the engine; ``salt`` divides its cache. ``counted``: see :meth:`token_counts`."""
        return orjson.dumps(self.sent(body, salt))

    def sent(self, body: Mapping[str, Any], salt: str) -> dict[str, Any]:
        """Return the fields that the engine gets."""
        kept = {name: value for name, value in body.items() if name not in self.unsent}
        return {**kept, "cache_salt": salt} if self.salted else kept

    def tags(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the caller's tags, which ``checks`` has checked."""
        found: dict[str, str] | None = body.get("metadata")
        return found or {}

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return the usage in a complete response; None when it has none."""
        return None

    def finish_reason(self, document: Mapping[str, Any]) -> str:
        """Return why a complete response ended, as :data:`FINISH_REASONS` has it; empty where nothing is written."""
        return ""

    def client_body(self, body: bytes) -> bytes:
        """Return an engine's complete response as the client gets it. Raises ValueError, KeyError or TypeError."""
        return body

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return whether a response ended by itself, so that it may be stored."""
        return False

    def token_counts(self, body: Mapping[str, Any]) -> TokenCounts | None:
        """Return the counter of the tokens in each stream event; None where engines do not report them."""
        return None

    def stream_parser(self, *, keep: bool) -> StreamParser:
        """Return the parser of one stream. ``keep``: buffer its events, to assemble them."""
        raise NotImplementedError

    def replay(self, document: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
        """Yield a stored response as stream events; only where ``cacheable`` is "both"."""
        raise NotImplementedError

    def render(self, body: bytes, *, stream: bool, include_usage: bool) -> bytes | None:
        """Return a stored response in the requested shape; None for one that has no form as a stream."""
        if not stream:
            return body
        try:
            return b"".join(self.replay(orjson.loads(body), include_usage=include_usage))
        except (LookupError, TypeError, AttributeError, ValueError):  # the engine left out a field that streams require
            return None

    def id_headers(self, request_name: str) -> Headers:
        """Return the headers that carry the request id."""
        return [(b"x-request-id", request_name.encode())]

    def error_body(self, error: GatewayError) -> bytes:
        """Return an error as a response body."""
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        """Return an error as the first event of a stream."""
        return error.event()

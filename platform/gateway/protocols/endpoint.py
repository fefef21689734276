"""What the journey asks of an endpoint: how its requests, answers, streams and errors look on the endpoint."""

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
from routing.prefix_hash import PromptMessage

#: What one event of a stream is. ``content`` counts as a token when the stream is cut; ``usage`` is passed on only to
#: a client that asked for it; ``done`` ends the stream and is withheld until the END is written.
EventKind = Literal["head", "content", "usage", "done", "error", "comment"]
#: Which answers the prediction cache may keep: none, those that are not streamed, or both shapes as one entry.
Cacheable = Literal["never", "whole", "both"]

#: Events of an answer that may be kept wait for its end, 200 bytes of them for each token: so that 16,000 tokens fit.
MAX_KEPT_BYTES = 4 << 20
#: So many of them are added up in a millisecond; more (8,000 tokens: 30 ms) in a thread, while others are served.
ADDED_AT_ONCE_BYTES = 128 * 1024


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one request as the engine reported them; cached and other prompt tokens are disjoint."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


#: The usage of a request that is charged for no token.
NOTHING = Usage(prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0)


def usage_of_total(prompt: Any, cached: Any, completion: Any) -> Usage:
    """Return the usage from a prompt count that includes the cached tokens, as OpenAI's objects count."""
    total = int(prompt or 0)
    warm = min(int(cached or 0), total)
    return Usage(prompt_tokens=total - warm, cached_prompt_tokens=warm, completion_tokens=int(completion or 0))


class StreamParser:
    """Reads the events of one stream, at the cost of a few comparisons of bytes each."""

    __slots__ = ("_events", "_kept_bytes", "_max_kept_bytes", "done", "ending", "failed", "keep", "usage")

    def __init__(self, *, keep: bool, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        #: False once the answer may not, or is too large to, be kept.
        self.keep = keep
        #: What the engine reported at its end; None until then.
        self.usage: Usage | None = None
        self.done = False
        #: The engine told an error, or something that cannot be read.
        self.failed = False
        #: The bytes that end the stream, once ``done``: sent when the END is written.
        self.ending = b""
        self._events: list[bytes] = []
        self._kept_bytes = 0
        self._max_kept_bytes = max_kept_bytes

    def read(self, event: bytes) -> EventKind:
        """Take note of one event, without its separator, and say what it is."""
        raise NotImplementedError

    def assemble(self) -> bytes:
        """Return the answer as it would be without streaming. Raises NotReplayable. Any thread may call it."""
        raise NotReplayable("stream")

    async def assembled(self) -> bytes:
        """Return :meth:`whole`, without holding anybody up. Raises NotReplayable, also for what cannot be written."""
        try:
            if self._kept_bytes <= ADDED_AT_ONCE_BYTES:
                return self.assemble()
            return await asyncio.to_thread(self.assemble)
        except (TypeError, RecursionError) as error:
            raise NotReplayable("malformed") from error

    def error_event(self, error: GatewayError) -> bytes:
        """Return the event that tells an error in this stream."""
        return error.event()

    def _keep_event(self, event: bytes) -> None:
        self._events.append(event)
        self._kept_bytes += len(event)
        if self._kept_bytes > self._max_kept_bytes:
            self.keep = False
            self._events.clear()


class Endpoint:
    """One endpoint. Its instances hold nothing of a request, so one serves all."""

    #: Where clients ask, and where engines answer.
    path: ClassVar[str]
    engine_path: ClassVar[str]
    #: Fields without which there is nothing to ask, in the order in which they are missed.
    required: ClassVar[tuple[str, ...]]
    checks: ClassVar[Mapping[str, Check]]
    #: Fields that say how many tokens may be written; the first that is there counts. Empty: none are written.
    limits: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[bool] = False
    cacheable: ClassVar[Cacheable] = "never"
    #: Fields that cannot change an answer here, so that they are no part of its name.
    ignored: ClassVar[frozenset[str]] = IGNORED
    #: The same question always has the same answer.
    deterministic: ClassVar[bool] = False
    #: False: it costs no token and leaves no usage row; only its request counts.
    metered: ClassVar[bool] = True
    #: The engine takes a ``cache_salt`` here.
    salted: ClassVar[bool] = True

    def prepare(self, body: dict[str, Any]) -> None:
        """Drop or force what only this endpoint knows. Raises BadRequest."""

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return how many answers are written."""
        return 1 if self.limits else 0

    def max_new_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens that may be written for each choice; None leaves it to the model's context."""
        for name in self.limits:
            value: int | None = body.get(name)
            if value is not None:
                return value
        return None

    def wants_usage(self, body: Mapping[str, Any]) -> bool:
        """Say whether the client asked for the events of kind ``usage``."""
        return False

    def clamp(self, body: dict[str, Any], context_length_tokens: int) -> None:
        """Ask for no more tokens than the model's context holds.

        That is all that is needed: vLLM itself writes at most what the prompt leaves (``get_max_tokens``), and refuses
        a request only for asking for more than the whole context (``TokenizeParams``).
        """
        for name in self.limits:
            value = body.get(name)
            if value is not None and value > context_length_tokens:
                body[name] = context_length_tokens

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return the prompt as routing sees it; empty where no engine has a prefix of it."""
        return []

    def engine_body(self, body: Mapping[str, Any], *, stream: bool, salt: str, counted: bool = False) -> bytes:
        """Return the body for the engine, in the caller's own part of its cache. ``counted``: see :meth:`counts`."""
        return orjson.dumps({**body, "cache_salt": salt} if self.salted else body)

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return what a whole answer says it took; None when it says nothing."""
        return None

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Say whether an answer came to an end of its own, so that it may be kept."""
        return False

    def token_counts(self, body: Mapping[str, Any]) -> TokenCounts | None:
        """Return what reads the tokens of each event of a stream; None where engines do not say them here."""
        return None

    def stream_parser(self, *, keep: bool) -> StreamParser:
        """Return the reader of one stream."""
        raise NotImplementedError

    def replay(self, document: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
        """Tell a kept answer as a stream; only where both shapes are kept."""
        raise NotImplementedError

    def render(self, body: bytes, *, stream: bool, include_usage: bool) -> bytes | None:
        """Return a kept answer in the shape that is asked for; None for one that has no form as a stream."""
        if not stream:
            return body
        try:
            return b"".join(self.replay(orjson.loads(body), include_usage=include_usage))
        except (LookupError, TypeError, AttributeError, ValueError):  # an engine left out what a stream must say
            return None

    def id_headers(self, request_name: str) -> Headers:
        """Return the headers that name a request."""
        return [(b"x-request-id", request_name.encode())]

    def error_body(self, error: GatewayError) -> bytes:
        """Return an error as an answer."""
        return error.body()

    def error_event(self, error: GatewayError) -> bytes:
        """Return an error as the first event of a stream."""
        return error.event()

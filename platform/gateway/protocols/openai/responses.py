"""OpenAI's responses without stored state, because an engine's store is not divided by tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from caching.errors import NotReplayable
from caching.fingerprint import IGNORED
from caching.replay import responses
from gateway.errors import BadRequest, GatewayError
from gateway.protocols import media, validators
from gateway.protocols.endpoint import (
    Cacheable,
    Endpoint,
    EventKind,
    StreamParser,
    Usage,
    finish_reason_of,
    usage_of_total,
)
from gateway.protocols.openai.chat import as_bytes, conversation, tools
from routing.prefixes.prefix_hash import PromptMessage

#: An event names its type within its first bytes, this many.
_TYPE_BYTES = 80
_DELTA = b".delta\n"
_ENDINGS = (b"event: response.completed\n", b"event: response.incomplete\n")
_FAILURES = (b"event: error", b"event: response.failed\n", b'data: {"error"')
#: Fields that refer to an engine's store, which all its clients share (vLLM, ``VLLM_ENABLE_RESPONSES_API_STORE``).
_STATEFUL = ("previous_response_id", "conversation")
#: Fields that do not change a response but that it repeats, so a stored one would show another client's values.
_REPEATED = frozenset({"metadata", "service_tier", "user"})


def usage_of(reported: Mapping[str, Any]) -> Usage:
    """Return the usage of a response; its ``input_tokens`` includes the cached ones."""
    details = reported.get("input_tokens_details") or {}
    return usage_of_total(
        reported.get("input_tokens"),
        details.get("cached_tokens"),
        reported.get("output_tokens"),
        written=details.get("cache_write_tokens"),
        reasoning=(reported.get("output_tokens_details") or {}).get("reasoning_tokens"),
    )


def finish_reason_of_response(response: Mapping[str, Any]) -> str:
    """Return why a response ended: its protocol says only that it did, or why it is incomplete."""
    if response.get("status") == "incomplete":
        return finish_reason_of((response.get("incomplete_details") or {}).get("reason"))
    if response.get("status") != "completed":
        return ""
    called = any(item.get("type") == "function_call" for item in response.get("output") or ())
    return "tool_calls" if called else "stop"


class ResponseParser(StreamParser):
    """Parses typed events up to ``response.completed``, which carries the whole response and its usage."""

    __slots__ = ("_events_passed", "_response")

    def __init__(self, *, keep: bool) -> None:
        super().__init__(keep=keep)
        self._events_passed = 0
        #: The whole response, once its last event has arrived.
        self._response: dict[str, Any] = {}

    def read(self, event: bytes) -> EventKind:
        """Parse one event; a last event that is not valid is an error."""
        if event.startswith(_FAILURES):
            self.failed = True
            return "error"
        if event.startswith(_ENDINGS):
            return self._end(event)
        if not event.startswith(b"event:"):
            return "comment"
        self._events_passed += 1
        return "content" if event.find(_DELTA, 0, _TYPE_BYTES) > 0 else "head"

    def assemble(self) -> bytes:
        """Return the response in the last event. Raises NotReplayable."""
        if not responses.is_whole(self._response):
            raise NotReplayable("unfinished")
        return orjson.dumps(self._response)

    def error_event(self, error: GatewayError) -> bytes:
        """Return the protocol's ``error`` event, numbered after the events passed on."""
        return _error_event(error, self._events_passed)

    def _end(self, event: bytes) -> EventKind:
        try:
            response = orjson.loads(event.partition(b"data:")[2])["response"]
            self.usage = usage_of(response["usage"]) if response.get("usage") else None
            self.finish_reason = finish_reason_of_response(response)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            self.failed = True
            return "error"
        self._response = response
        self._kept_bytes = len(event)
        self.done = True
        self.ending = event + b"\n\n"
        return "done"


class Responses(Endpoint):
    """``/v1/responses``."""

    path = engine_path = "/v1/responses"
    required = ("input",)
    checks = {
        "model": validators.text,
        "input": validators.response_input,
        "instructions": validators.string,
        "stream": validators.boolean,
        "store": validators.boolean,
        "background": validators.boolean,
        "max_output_tokens": validators.count,
        "temperature": validators.number,
        "top_p": validators.number,
        "user": validators.text,
        "prompt_cache_key": validators.text,
        "metadata": validators.tags,
    }
    limits: ClassVar[tuple[str, ...]] = ("max_output_tokens",)
    streams = True
    cacheable: ClassVar[Cacheable] = "both"
    ignored = IGNORED - _REPEATED
    #: The engine's response repeats its request's tags.
    unsent: ClassVar[frozenset[str]] = frozenset()

    def prepare(self, body: dict[str, Any]) -> None:
        """Reject fields that need stored state, forbid storing, and check media. Raises BadRequest."""
        for name in _STATEFUL:
            if body.get(name) is not None:
                raise _not_stored(name)
        if body.get("background"):
            raise BadRequest(
                "'background' is not supported. Send the header 'Prefer: respond-async' instead.",
                "unsupported_value",
                "background",
            )
        body["store"] = False
        if isinstance(body["input"], list):
            media.clean_parts(body["input"], "input")

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return tools, instructions and input in the order of chat templates."""
        found = tools(body)
        if body.get("instructions"):
            found.append(PromptMessage(head=b"system", text=as_bytes(body["instructions"])))
        given = body["input"]
        if isinstance(given, str):
            return [*found, PromptMessage(head=b"user", text=given.encode())]
        return [*found, *conversation([_with_role(item) for item in given])]

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return the usage of a whole response."""
        return usage_of(document["usage"]) if document.get("usage") else None

    def finish_reason(self, document: Mapping[str, Any]) -> str:
        """Return why the response ended."""
        return finish_reason_of_response(document)

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return whether the response ended by itself or at its token limit."""
        return responses.is_whole(document)

    def stream_parser(self, *, keep: bool) -> StreamParser:
        """Return a parser of typed events."""
        return ResponseParser(keep=keep)

    def replay(self, document: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
        """Yield a stored response as typed events, which always include its usage."""
        return responses.stream(document)

    def error_event(self, error: GatewayError) -> bytes:
        """Return the protocol's ``error`` event as the first event."""
        return _error_event(error, 0)


class CountInputTokens(Responses):
    """``/v1/responses/input_tokens``: free. The engine renders the prompt as for a response, and writes nothing."""

    path = "/v1/responses/input_tokens"
    engine_path = "/v1/responses/render"
    limits = ()
    streams = False
    cacheable = "never"
    metered = False
    salted = False

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return nothing: the engine computes no prefix."""
        return []

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return None: nothing is used."""
        return None

    def finish_reason(self, document: Mapping[str, Any]) -> str:
        """Return nothing: nothing is written."""
        return ""

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return False: a count is not stored."""
        return False

    def client_body(self, body: bytes) -> bytes:
        """Return OpenAI's count of the tokens that the engine rendered."""
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": len(orjson.loads(body)["token_ids"])})


def _with_role(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as a message; calls and their outputs have a type instead of a role."""
    role = item.get("role") or item.get("type")
    return {**item, "role": role if isinstance(role, str) else "item"}


def _not_stored(name: str) -> BadRequest:
    return BadRequest(
        f"'{name}' is not supported because Hearth does not store responses. Send the whole conversation as 'input'.",
        "unsupported_value",
        name,
    )


def _error_event(error: GatewayError, number: int) -> bytes:
    document = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": number,
    }
    return b"event: error\ndata: " + orjson.dumps(document) + b"\n\n"

"""Anthropic's messages, and counting their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson

from caching.replay import messages
from gateway.errors import BadRequest, GatewayError, Headers
from gateway.protocols import media, validators
from gateway.protocols.endpoint import Endpoint, EventKind, StreamParser, Usage, finish_reason_of, usage_of_total
from gateway.protocols.openai.chat import as_bytes, conversation, tools
from routing.prefixes.prefix_hash import PromptMessage

_DELTA = b"event: content_block_delta\n"
#: The signature of a thinking block, which is no token.
_SIGNATURE = b'"signature_delta"'
_FAILURES = (b"event: error", b'data: {"type":"error"', b'data: {"error"')
#: Choices that force a tool call.
_CALLING = ("any", "tool")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def usage_of(reported: Mapping[str, Any]) -> Usage:
    """Return the usage of a message; its ``input_tokens`` excludes cache reads and writes."""
    cached = int(reported.get("cache_read_input_tokens") or 0)
    written = int(reported.get("cache_creation_input_tokens") or 0)
    prompt = int(reported.get("input_tokens") or 0) + cached + written
    return usage_of_total(prompt, cached, reported.get("output_tokens"), written=written)


class MessageParser(StreamParser):
    """Parses typed events up to ``message_stop``. The usage is in ``message_delta``, just before it."""

    __slots__ = ()

    def read(self, event: bytes) -> EventKind:
        """Parse one event; a ``message_delta`` that is not valid is an error."""
        if self.keep and event.startswith(b"event:"):
            self._keep_event(event)
        if event.startswith(_DELTA):
            return "head" if _SIGNATURE in event else "content"
        if event.startswith(_FAILURES):
            self.failed = True
            return "error"
        if event.startswith(b"event: message_stop"):
            self.done = True
            self.ending = event + b"\n\n"
            return "done"
        if not event.startswith(b"event:"):
            return "comment"
        if event.startswith(b"event: message_delta\n"):
            self._read_usage(event)
        return "error" if self.failed else "head"

    def assemble(self) -> bytes:
        """Return the message that the events add up to. Raises NotReplayable."""
        return orjson.dumps(messages.fold(self._events))

    def error_event(self, error: GatewayError) -> bytes:
        """Return Anthropic's ``error`` event."""
        return _event(error)

    def _read_usage(self, event: bytes) -> None:
        try:
            delta = orjson.loads(event.partition(b"data:")[2])
            self.usage = usage_of(delta["usage"]) if delta.get("usage") else self.usage
            self.finish_reason = finish_reason_of((delta.get("delta") or {}).get("stop_reason")) or self.finish_reason
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
            self.failed = True


class _Anthropic(Endpoint):
    """What both endpoints share: the format of conversations and errors."""

    required: ClassVar[tuple[str, ...]] = ("messages",)

    def prepare(self, body: dict[str, Any]) -> None:
        """Drop cache marks, because engines decide themselves what to cache, and check media. Raises BadRequest.

        Clients move their marks from turn to turn, but routing needs prompts that begin like the turn before.
        """
        for block in _blocks(body):
            block.pop("cache_control", None)
        media.clean_messages(body["messages"])

    def id_headers(self, request_name: str) -> Headers:
        """Return the request id under Anthropic's header name too, which its SDK reads."""
        return [*super().id_headers(request_name), (b"request-id", request_name.encode())]

    def error_body(self, error: GatewayError) -> bytes:
        """Return Anthropic's error envelope."""
        return _envelope(error)

    def error_event(self, error: GatewayError) -> bytes:
        """Return Anthropic's ``error`` event."""
        return _event(error)


class Messages(_Anthropic):
    """``/v1/messages``."""

    path = engine_path = "/v1/messages"
    required = ("messages", "max_tokens")
    checks = {
        "model": validators.text,
        "messages": validators.messages,
        "max_tokens": validators.count,
        "system": validators.string_or_array,
        "metadata": validators.tags_and_user,
        "stream": validators.boolean,
        "temperature": validators.number,
        "top_p": validators.number,
        "tools": validators.message_tools,
    }
    limits = ("max_tokens",)
    streams = True
    cacheable = "both"

    def tags(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the caller's tags: its metadata without ``user_id``."""
        return {name: value for name, value in super().tags(body).items() if name != "user_id"}

    def prepare(self, body: dict[str, Any]) -> None:
        """Reject a choice of tools without tools, which an engine takes for a call. Raises BadRequest."""
        super().prepare(body)
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") in _CALLING and not body.get("tools"):
            raise BadRequest(
                f"'tool_choice' is {choice['type']!r}, but there are no tools. Send 'tools', or remove 'tool_choice'.",
                "invalid_value",
                "tool_choice",
            )

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return tools, system prompt and conversation."""
        found = tools(body)
        if body.get("system"):
            found.append(PromptMessage(head=b"system", text=as_bytes(body["system"])))
        return [*found, *conversation(body["messages"])]

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return the usage of a whole message."""
        return usage_of(document["usage"]) if document.get("usage") else None

    def finish_reason(self, document: Mapping[str, Any]) -> str:
        """Return why the message ended."""
        return finish_reason_of(document.get("stop_reason"))

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return whether the message ended by itself."""
        return messages.is_whole(document)

    def stream_parser(self, *, keep: bool) -> StreamParser:
        """Return a parser of typed events."""
        return MessageParser(keep=keep)

    def replay(self, document: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
        """Yield a stored message as typed events, which always include its usage."""
        return messages.stream(document)


class CountTokens(_Anthropic):
    """``/v1/messages/count_tokens``: free, as with Anthropic."""

    path = engine_path = "/v1/messages/count_tokens"
    checks = {name: Messages.checks[name] for name in ("model", "messages", "system", "tools")}
    metered = False
    salted = False


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all blocks that may carry a cache mark: in messages, tool results, the system prompt and tools."""
    found: list[Any] = [*(body.get("tools") or ()), body]
    for holder in ({"content": body.get("system")}, *body["messages"]):
        if isinstance(holder.get("content"), list):
            found.extend(holder["content"])
    inner = [each["content"] for each in found if isinstance(each, dict) and isinstance(each.get("content"), list)]
    found.extend(block for blocks in inner for block in blocks)
    return [block for block in found if isinstance(block, dict)]


def _envelope(error: GatewayError) -> bytes:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": error.message}})


def _event(error: GatewayError) -> bytes:
    return b"event: error\ndata: " + _envelope(error) + b"\n\n"

"""OpenAI's chat completions and completions, whose responses and streams have the same format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from caching.replay import chunks
from gateway.errors import BadRequest
from gateway.protocols import media, validators
from gateway.protocols.endpoint import (
    MAX_KEPT_BYTES,
    Endpoint,
    EventKind,
    StreamParser,
    Usage,
    finish_reason_of,
    usage_of_total,
)
from gateway.protocols.stream_token_counts import TokenCounts
from routing.prefixes.prefix_hash import PromptMessage

_DONE = b"data: [DONE]"
_USAGE_MARK = b'"usage"'
_EACH = "continuous_usage_stats"
#: The first chunk of a chat stream carries the role, which is no token.
_ROLE_MARK = b'"delta":{"role":'

COMMON: dict[str, validators.Check] = {
    "model": validators.text,
    "stream": validators.boolean,
    "stream_options": validators.mapping,
    "max_tokens": validators.count,
    "n": validators.count,
    "temperature": validators.number,
    "top_p": validators.number,
    "user": validators.text,
    "prompt_cache_key": validators.text,
    "metadata": validators.tags,
}


def usage_of(reported: Mapping[str, Any]) -> Usage:
    """Return OpenAI's usage object as disjoint classes; its ``prompt_tokens`` includes the cached ones."""
    details = reported.get("prompt_tokens_details") or {}
    return usage_of_total(
        reported.get("prompt_tokens"),
        details.get("cached_tokens"),
        reported.get("completion_tokens"),
        written=details.get("created_cache_tokens"),
        reasoning=(reported.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    )


class ChunkParser(StreamParser):
    """Parses chunks up to ``[DONE]``. The usage chunk is the one without choices (OpenAI, ``include_usage``)."""

    __slots__ = ("_last",)

    def __init__(self, *, keep: bool, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        super().__init__(keep=keep, max_kept_bytes=max_kept_bytes)
        #: The last event with tokens: there the last choice ends.
        self._last = b""

    def read(self, event: bytes) -> EventKind:
        """Parse one event; one that is not valid is an error."""
        if event.startswith(_DONE):
            self.done = True
            self.ending = chunks.DONE
            return "done"
        if event.startswith((b"event: error", b'data: {"error"')):
            self.failed = True
            return "error"
        if not event.startswith(b"data:"):
            return "comment"
        if self.keep:
            self._keep_event(event)
        if _USAGE_MARK in event and not self._read_usage(event):
            return "error" if self.failed else "usage"
        if _ROLE_MARK in event:
            return "head"
        self._last = event
        return "content"

    def assemble(self) -> bytes:
        """Return the response that the chunks add up to. Raises NotReplayable."""
        return orjson.dumps(chunks.fold(self._events))

    def _read_usage(self, event: bytes) -> bool:
        """Read the usage; return whether the event has choices too, whose usage is that of one choice so far."""
        try:
            chunk = orjson.loads(event.removeprefix(b"data:"))
            if chunk.get("choices"):
                return True
            if chunk.get("usage"):
                self.usage = usage_of(chunk["usage"])
            if self._last:
                self.finish_reason = _finish_reason(orjson.loads(self._last.removeprefix(b"data:")))
            return False
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
            self.failed = True
            return False


def _finish_reason(document: Mapping[str, Any]) -> str:
    """Return why the last choice of a response or a chunk ended."""
    choices = document.get("choices")
    return finish_reason_of(choices[-1].get("finish_reason")) if choices else ""


class _Chunked(Endpoint):
    """What chat and completions share."""

    streams = True
    cacheable = "both"

    def prepare(self, body: dict[str, Any]) -> None:
        """Reject fields that a stream cannot return, so that one cache key stands for both shapes. Raises BadRequest.

        vLLM rejects such a stream too, and ignores a 0.
        """
        if body.get("stream") and body.get("prompt_logprobs"):
            raise BadRequest(
                "'prompt_logprobs' is not available in a stream. Remove 'stream' or 'prompt_logprobs'.",
                "invalid_value",
                "prompt_logprobs",
            )
        if body.get("stream"):
            body.pop("prompt_logprobs", None)

    def wants_usage(self, body: Mapping[str, Any]) -> bool:
        """Return ``stream_options.include_usage``."""
        return bool((body.get("stream_options") or {}).get("include_usage"))

    def wants_token_counts(self, body: Mapping[str, Any]) -> bool:
        """Return whether the client requested usage with each event; vLLM requires ``include_usage`` for that."""
        return self.wants_usage(body) and bool(body["stream_options"].get(_EACH))

    def engine_body(self, body: Mapping[str, Any], *, stream: bool, salt: str, counted: bool = False) -> bytes:
        """Return the body for the engine. A stream always requests its usage; ``counted``: with each event."""
        engine_body = self.sent(body, salt)
        if stream:
            options = {**(body.get("stream_options") or {}), "include_usage": True}
            engine_body["stream_options"] = {**options, _EACH: counted or self.wants_token_counts(body)}
        return orjson.dumps(engine_body)

    def token_counts(self, body: Mapping[str, Any]) -> TokenCounts:
        """Return the counter that reads ``continuous_usage_stats``."""
        return TokenCounts(shown=self.wants_token_counts(body))

    def usage(self, document: Mapping[str, Any]) -> Usage | None:
        """Return the usage of a complete response."""
        return usage_of(document["usage"]) if document.get("usage") else None

    def finish_reason(self, document: Mapping[str, Any]) -> str:
        """Return why the last choice ended."""
        return _finish_reason(document)

    def is_complete(self, document: dict[str, Any]) -> bool:
        """Return whether all choices ended by themselves."""
        return chunks.is_whole(document)

    def stream_parser(self, *, keep: bool) -> StreamParser:
        """Return a parser of chunks."""
        return ChunkParser(keep=keep)

    def replay(self, document: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
        """Yield a stored response as chunks."""
        return chunks.stream(document, include_usage=include_usage)


class Chat(_Chunked):
    """``/v1/chat/completions``."""

    path = engine_path = "/v1/chat/completions"
    required = ("messages",)
    checks = {**COMMON, "messages": validators.messages, "max_completion_tokens": validators.count}
    limits = ("max_completion_tokens", "max_tokens")

    def prepare(self, body: dict[str, Any]) -> None:
        """Check media. Raises BadRequest."""
        super().prepare(body)
        media.clean_messages(body["messages"])

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return ``n``."""
        return body.get("n") or 1

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return the conversation, with the tools first as in chat templates."""
        return [*tools(body), *conversation(body["messages"])]


class Completions(_Chunked):
    """``/v1/completions``."""

    path = engine_path = "/v1/completions"
    required = ("prompt",)
    checks = {**COMMON, "prompt": validators.prompt}
    limits = ("max_tokens",)

    def max_new_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return ``max_tokens``; without it engines write 16, as OpenAI's do."""
        return super().max_new_tokens(body) or 16

    def choices(self, body: Mapping[str, Any]) -> int:
        """Return ``n`` times the number of prompts."""
        return (body.get("n") or 1) * _prompts(body["prompt"])

    def messages(self, body: Mapping[str, Any]) -> list[PromptMessage]:
        """Return the prompt as one message."""
        return [*tools(body), PromptMessage(head=b"prompt", text=as_bytes(body.get("prompt")))]


def tools(body: Mapping[str, Any]) -> list[PromptMessage]:
    """Return the tools as the system message that chat templates make of them."""
    return [PromptMessage(head=b"tools", text=orjson.dumps(body["tools"]))] if body.get("tools") else []


def conversation(found: list[dict[str, Any]]) -> list[PromptMessage]:
    """Return messages with roles as routing hashes them."""
    return [
        PromptMessage(
            head=message["role"].encode(),
            text=as_bytes(
                {k: v for k, v in message.items() if k != "role"} if len(message) > 2 else message.get("content")
            ),
        )
        for message in found
    ]


def as_bytes(value: Any) -> bytes:
    """Return a text as UTF-8 and any other value as JSON."""
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(value) if value is not None else b""


def _prompts(prompt: str | list[Any]) -> int:
    """Return the number of prompts of a completion; a list of token ids is one prompt."""
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1

"""Convert OpenAI chat completions and completions to chunks and back, in the form that vLLM sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from caching.errors import NotReplayable

DONE = b"data: [DONE]\n\n"
#: Top-level fields that a response and its chunks share.
_SHARED = ("id", "created", "model", "system_fingerprint", "service_tier")
#: Fields of only the first chunk of each chat choice (``return_token_ids``, ``return_prompt_text``).
_OPENING = ("prompt_token_ids", "prompt_text")
#: Fields of a choice that no stream contains.
_NOT_STREAMED = frozenset({"message", "index", "routed_experts", "prompt_logprobs"})
#: Finish reasons of a complete response: vLLM's ``FINISH_REASON_STRINGS`` without ``abort`` and ``error``, and OpenAI's
#: without ``content_filter``, which is a decision of a filter and not of the model.
_WHOLE = ("stop", "length", "repetition", "tool_calls", "function_call")


def event(data: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def is_whole(response: dict[str, Any]) -> bool:
    """Return whether a response has usage and choices, all of which ended by themselves or at their limit."""
    choices = response.get("choices") or []
    ended = all(choice.get("finish_reason") in _WHOLE for choice in choices)
    return bool(choices and response.get("usage")) and ended


def fold(events: Iterable[bytes]) -> dict[str, Any]:
    """Return the non-streamed response of these ``data:`` events, including usage.

    Raises NotReplayable for an error event, an incomplete response, or a part that this function cannot combine.
    """
    response: dict[str, Any] = {}
    choices: dict[int, _Choice] = {}
    known = {"choices", "usage"}
    try:
        for chunk in _chunks(events):
            if not known.issuperset(chunk):
                response |= {key: value for key, value in chunk.items() if key not in known and value is not None}
                known.update(response)
            parts = chunk.get("choices", ())
            if chunk.get("usage") and not parts:  # beside a choice it is a running total
                response["usage"] = chunk["usage"]
            for part in parts:
                choice = choices.get(part["index"])
                if choice is None:
                    choice = choices[part["index"]] = _Choice(fields={"index": part["index"]})
                choice.add(part)
        response["object"] = response["object"].removesuffix(".chunk")
    except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
        raise NotReplayable("malformed") from error
    response["choices"] = [choices[index].whole() for index in sorted(choices)]
    if not is_whole(response):
        raise NotReplayable("unfinished")
    return response


def stream(response: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """Yield a response as server-sent events: role, content, finish, usage if requested, ``[DONE]``.

    Usage comes once, at the end: the order in which tokens of several choices arrived is unknown.
    """
    usage = response.get("usage")
    chat = response["object"] == "chat.completion"
    head = {key: response[key] for key in _SHARED if response.get(key) is not None}
    head["object"] = "chat.completion.chunk" if chat else response["object"]
    opening = {key: response[key] for key in _OPENING if response.get(key) is not None}
    for choice in response["choices"]:
        for number, part in enumerate(_chat_parts(choice) if chat else _text_parts(choice)):
            yield event({**head, "choices": [part], **(opening if number == 0 else {})})
    if include_usage:
        yield event({**head, "choices": [], "usage": usage})
    yield DONE


def _chunks(events: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    payloads = [event.strip().removeprefix(b"data:").strip() for event in events]
    payloads = [payload for payload in payloads if payload and payload != b"[DONE]"]
    # one parse for all: starting a parse takes longer than reading a chunk
    chunks: list[dict[str, Any]] = orjson.loads(b"[%b]" % b",".join(payloads))
    if len(chunks) != len(payloads):
        raise NotReplayable("malformed")
    if any("error" in chunk for chunk in chunks):
        raise NotReplayable("error")
    return chunks


def _chat_parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    message = dict(choice["message"])
    index = choice["index"]
    calls = message.get("tool_calls") or []
    begin = None if message.get("content") is None else ""
    yield {"index": index, "delta": {"role": message.pop("role", "assistant"), "content": begin}, "finish_reason": None}
    delta = {key: value for key, value in message.items() if value and key != "tool_calls"}
    if calls:
        delta["tool_calls"] = [{**call, "index": position} for position, call in enumerate(calls)]
    rest = {key: value for key, value in choice.items() if key not in _NOT_STREAMED}
    if delta:
        body = {"index": index, "delta": delta, "finish_reason": None}
        if rest.get("logprobs"):
            body["logprobs"] = rest.pop("logprobs")
        yield body
    yield {"index": index, "delta": {}, **rest}


def _text_parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {key: value for key, value in choice.items() if key == "index" or key not in _NOT_STREAMED}


@dataclass(slots=True, kw_only=True)
class _Choice:
    """One choice being combined. Its texts are joined once: each addition to a long text would copy it."""

    fields: dict[str, Any]
    #: A completion's text, under "", or a message's texts by field.
    texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, part: dict[str, Any]) -> None:
        """Add one chunk's part of this choice. Raises NotReplayable for a part that cannot be combined."""
        for key, value in part.items():
            if key == "delta":
                self._add_delta(value)
            elif value is None or key == "index":
                continue
            elif key == "text":
                self._add_text("", value)
            elif key == "logprobs":
                if value:
                    _add_logprobs(self.fields.setdefault(key, {}), value)
            elif isinstance(value, list):  # token_ids, if requested
                self.fields.setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                raise NotReplayable(key)
            else:
                self.fields[key] = value

    def whole(self) -> dict[str, Any]:
        """Return the choice with its joined texts."""
        for key, pieces in self.texts.items():
            text = "".join(pieces)
            if key:
                self.fields["message"][key] = text
            else:
                self.fields["text"] = text
        return self.fields

    def _add_delta(self, delta: dict[str, Any]) -> None:
        message = self.fields.get("message")
        if message is None:
            message = self.fields["message"] = {"role": "assistant", "content": None}
        for key, value in delta.items():
            if value is None:
                continue
            if key == "role":
                message["role"] = value
            elif key == "tool_calls":
                _add_calls(message.setdefault("tool_calls", []), value)
            elif isinstance(value, str):
                self._add_text(key, value)
            else:
                raise NotReplayable(key)

    def _add_text(self, key: str, text: str) -> None:
        if not isinstance(text, str):
            raise NotReplayable(key or "text")
        pieces = self.texts.get(key)
        if pieces is None:
            self.texts[key] = [text]
        else:
            pieces.append(text)


def _add_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        position = delta["index"]
        while len(calls) <= position:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[position]
        call["id"] = delta.get("id") or call["id"]
        function = delta.get("function") or {}
        for key in ("name", "arguments"):
            call["function"][key] += function.get(key) or ""


def _add_logprobs(into: dict[str, Any], logprobs: dict[str, Any]) -> None:
    for key, value in logprobs.items():
        if isinstance(value, list):
            into.setdefault(key, []).extend(value)
        elif value is not None:
            raise NotReplayable("logprobs")

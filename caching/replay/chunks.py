"""OpenAI's chat completion and completion and their chunks, one from the other, as vLLM sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from caching.errors import NotReplayable

DONE = b"data: [DONE]\n\n"
#: What an answer and its chunks both carry at the top level.
_SHARED = ("id", "created", "model", "system_fingerprint", "service_tier")
#: What only the first chunk of each choice of a chat carries (``return_token_ids``, ``return_prompt_text``).
_OPENING = ("prompt_token_ids", "prompt_text")
#: What of a choice no stream carries.
_UNTOLD = frozenset({"message", "index", "routed_experts", "prompt_logprobs"})
#: How an answer ends of itself, or where its own request says: vLLM's ``FINISH_REASON_STRINGS`` without ``abort`` and
#: ``error``, and OpenAI's without ``content_filter``, which is a verdict of the day and nothing of the model.
_WHOLE = ("stop", "length", "repetition", "tool_calls", "function_call")


def event(data: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def is_whole(answer: dict[str, Any]) -> bool:
    """Say whether an answer has choices, all of which came to an end of their own or of their limit, and its usage."""
    choices = answer.get("choices") or []
    ended = all(choice.get("finish_reason") in _WHOLE for choice in choices)
    return bool(choices and answer.get("usage")) and ended


def fold(events: Iterable[bytes]) -> dict[str, Any]:
    """Return the non-streamed answer that these ``data:`` events tell, usage included.

    Raises NotReplayable for an error event, an answer that is not whole, or a part this function cannot add up.
    """
    answer: dict[str, Any] = {}
    choices: dict[int, _Choice] = {}
    known = {"choices", "usage"}
    try:
        for chunk in _chunks(events):
            if not known.issuperset(chunk):
                answer |= {key: value for key, value in chunk.items() if key not in known and value is not None}
                known.update(answer)
            parts = chunk.get("choices", ())
            if chunk.get("usage") and not parts:  # beside a choice it is that of the choice until now
                answer["usage"] = chunk["usage"]
            for part in parts:
                choice = choices.get(part["index"])
                if choice is None:
                    choice = choices[part["index"]] = _Choice(told={"index": part["index"]})
                choice.add(part)
        answer["object"] = answer["object"].removesuffix(".chunk")
    except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
        raise NotReplayable("malformed") from error
    answer["choices"] = [choices[index].whole() for index in sorted(choices)]
    if not is_whole(answer):
        raise NotReplayable("unfinished")
    return answer


def stream(answer: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """Tell an answer as server-sent events: role, content, finish, usage when asked for, ``[DONE]``.

    Usage comes once, at the end: how the tokens of several choices came one after the other is not known any more.
    """
    usage = answer.get("usage")
    chat = answer["object"] == "chat.completion"
    head = {key: answer[key] for key in _SHARED if answer.get(key) is not None}
    head["object"] = "chat.completion.chunk" if chat else answer["object"]
    opening = {key: answer[key] for key in _OPENING if answer.get(key) is not None}
    for choice in answer["choices"]:
        for number, part in enumerate(_chat_parts(choice) if chat else _text_parts(choice)):
            yield event({**head, "choices": [part], **(opening if number == 0 else {})})
    if include_usage:
        yield event({**head, "choices": [], "usage": usage})
    yield DONE


def _chunks(events: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    payloads = [event.strip().removeprefix(b"data:").strip() for event in events]
    payloads = [payload for payload in payloads if payload and payload != b"[DONE]"]
    # all at once: to begin with each anew takes longer than to read it
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
    rest = {key: value for key, value in choice.items() if key not in _UNTOLD}
    if delta:
        body = {"index": index, "delta": delta, "finish_reason": None}
        if rest.get("logprobs"):
            body["logprobs"] = rest.pop("logprobs")
        yield body
    yield {"index": index, "delta": {}, **rest}


def _text_parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {key: value for key, value in choice.items() if key == "index" or key not in _UNTOLD}


@dataclass(slots=True, kw_only=True)
class _Choice:
    """One choice as far as it is told. Its texts are joined once: adding to a long one copies it each time."""

    told: dict[str, Any]
    #: A completion's text, under "", or a message's by their names.
    texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, part: dict[str, Any]) -> None:
        """Take what one chunk tells of this choice. Raises NotReplayable for what cannot be added up."""
        for key, value in part.items():
            if key == "delta":
                self._add_delta(value)
            elif value is None or key == "index":
                continue
            elif key == "text":
                self._add_text("", value)
            elif key == "logprobs":
                if value:
                    _add_logprobs(self.told.setdefault(key, {}), value)
            elif isinstance(value, list):  # token_ids, when asked for
                self.told.setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                raise NotReplayable(key)
            else:
                self.told[key] = value

    def whole(self) -> dict[str, Any]:
        """Return it with its texts."""
        for key, pieces in self.texts.items():
            text = "".join(pieces)
            if key:
                self.told["message"][key] = text
            else:
                self.told["text"] = text
        return self.told

    def _add_delta(self, delta: dict[str, Any]) -> None:
        message = self.told.get("message")
        if message is None:
            message = self.told["message"] = {"role": "assistant", "content": None}
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

"""Convert Anthropic messages to events and back, in vLLM's form (``entrypoints/anthropic/serving.py``)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from caching.errors import NotReplayable
from caching.replay.typed_events import event, parsed

#: Text deltas by type: (field of the delta, field of the block).
_TEXTS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
_JSON, _SIGNATURE = "input_json_delta", "signature_delta"
#: Blocks whose input is streamed as pieces of JSON.
_CALLS = ("tool_use", "server_tool_use")
#: Stop reasons of a complete message. vLLM gives none to a message that it cut off; Anthropic's ``refusal`` is a
#: decision of a filter, and ``pause_turn`` is to be continued.
_WHOLE = ("end_turn", "max_tokens", "stop_sequence", "tool_use")


def is_whole(message: dict[str, Any]) -> bool:
    """Return whether the message ended by itself or at its limit, and has usage."""
    return message.get("stop_reason") in _WHOLE and bool(message.get("usage"))


def fold(events: Iterable[bytes]) -> dict[str, Any]:
    """Return the message of these events in its non-streamed form.

    That form omits null fields; an empty message has one empty text. Raises NotReplayable for an incomplete message,
    and for a part that this function cannot combine, such as a call that ``max_tokens`` cut off.
    """
    message: dict[str, Any] = {}
    blocks: dict[int, _Block] = {}
    try:
        for data in parsed(events):
            match data["type"]:
                case "message_start":
                    message |= data["message"]
                case "content_block_start":
                    blocks[data["index"]] = _Block(fields=data["content_block"])
                case "content_block_delta":
                    blocks[data["index"]].add(data["delta"])
                case "message_delta":
                    message |= data["delta"]
                    message["usage"] = {**message.get("usage", {}), **(data.get("usage") or {})}
                case "content_block_stop" | "message_stop" | "ping":
                    pass
                case other:
                    raise NotReplayable(other)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NotReplayable("malformed") from error
    message["content"] = [blocks[index].whole() for index in sorted(blocks)] or [{"type": "text", "text": ""}]
    if not is_whole(message):
        raise NotReplayable("unfinished")
    return {name: value for name, value in message.items() if value is not None}


def stream(message: dict[str, Any]) -> Iterator[bytes]:
    """Yield a message as events, each block in one delta; usage is in ``message_delta``."""
    usage = message["usage"]
    prompt = sum(
        usage.get(name) or 0 for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {"input_tokens": prompt, "output_tokens": 0}
    yield event("message_start", {"message": {**message, **begun}})
    for index, block in enumerate(message["content"]):
        empty, deltas = _split(block)
        yield event("content_block_start", {"index": index, "content_block": empty})
        for delta in deltas:
            yield event("content_block_delta", {"index": index, "delta": delta})
        yield event("content_block_stop", {"index": index})
    ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    yield event("message_delta", {"delta": ended, "usage": usage})
    yield event("message_stop", {})


def _split(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block's start and its deltas. A block of a type without deltas is complete at its start."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
            return {**block, "text": ""}, deltas
        case "thinking":
            thought, seal = block["thinking"], block.get("signature")
            deltas = [{"type": "thinking_delta", "thinking": thought}] if thought else []
            deltas += [{"type": _SIGNATURE, "signature": seal}] if seal else []
            return {name: value for name, value in block.items() if name != "signature"} | {"thinking": ""}, deltas
        case kind if kind in _CALLS:
            arguments = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": _JSON, "partial_json": arguments}] if block["input"] else []
        case _:
            return block, []


@dataclass(slots=True, kw_only=True)
class _Block:
    """One block being combined. Its text is joined once."""

    fields: dict[str, Any]
    pieces: list[str] = field(default_factory=list)
    #: The field of the block that the pieces make up; ``input`` is JSON.
    name: str = ""

    def add(self, delta: dict[str, Any]) -> None:
        """Add one delta. Raises NotReplayable for one that cannot be combined."""
        kind = delta["type"]
        if kind in _TEXTS:
            source, name = _TEXTS[kind]
            self._add(name, delta[source])
        elif kind == _JSON:
            self._add("input", delta["partial_json"])
        elif kind == _SIGNATURE:
            self.fields["signature"] = delta["signature"]
        else:
            raise NotReplayable(kind)

    def whole(self) -> dict[str, Any]:
        """Return the block. Raises NotReplayable for input that is not JSON, as in a call that was cut off."""
        text = "".join(self.pieces)
        if self.name == "input" and text:
            self.fields["input"] = _json(text)
        elif self.name:
            self.fields[self.name] += text
        return {name: value for name, value in self.fields.items() if value is not None}

    def _add(self, name: str, piece: str) -> None:
        if not isinstance(piece, str) or self.name not in {"", name}:
            raise NotReplayable(name)
        self.name = name
        self.pieces.append(piece)


def _json(text: str) -> Any:
    """Return the value. Raises NotReplayable for values that parsers read differently: NaN, huge numbers."""
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        orjson.dumps(found)
    except (ValueError, TypeError) as error:
        raise NotReplayable("input") from error
    return found


def _refuse(constant: str) -> Any:
    """Raise ValueError for the constants NaN and Infinity."""
    raise ValueError(constant)


def _finite(number: str) -> float:
    """Return the number. Raises ValueError for infinity, which would be written as null."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value

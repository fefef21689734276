"""Convert OpenAI responses to events, as vLLM sends them (``entrypoints/openai/responses/streaming_events.py``).

The last event of a stream contains the whole response, so nothing has to be combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caching.replay.typed_events import event

#: Reason of a response that ended at its limit. The other reason, a content filter, is not replayed.
_LIMIT = "max_output_tokens"
#: Parts with text, and the field of the text.
_PARTS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
#: Calls by type: (field, prefix of the event names).
_CALLS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}

TypedEvent = tuple[str, dict[str, Any]]


def is_whole(response: dict[str, Any]) -> bool:
    """Return whether the response ended by itself or at its limit, and has usage."""
    status, why = response.get("status"), response.get("incomplete_details") or {}
    ended = status == "completed" or (status == "incomplete" and why.get("reason") == _LIMIT)
    return bool(ended and response.get("usage")) and isinstance(response.get("output"), list)


def stream(response: dict[str, Any]) -> Iterator[bytes]:
    """Yield a response as numbered events, each text in one delta; the last event contains the whole response.

    Its type is ``response.completed`` whatever the status, as in vLLM and OpenAI's SDK.
    """
    for number, (kind, fields) in enumerate(_events(response)):
        yield event(kind, {"sequence_number": number, **fields})


def _events(response: dict[str, Any]) -> Iterator[TypedEvent]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(response["output"]):
        place = {"output_index": index}
        if item["type"] in _CALLS:
            yield from _call(item, place)
        elif item["type"] in {"message", "reasoning"}:
            yield from _parts(item, place)
        else:
            yield "response.output_item.added", {**place, "item": item}
        yield "response.output_item.done", {**place, "item": item}
    yield "response.completed", {"response": response}


def _call(item: dict[str, Any], place: dict[str, Any]) -> Iterator[TypedEvent]:
    field, name = _CALLS[item["type"]]
    begun = {**item, field: ""}
    if "status" in item:
        begun["status"] = "in_progress"
    yield "response.output_item.added", {**place, "item": begun}
    place = {**place, "item_id": item.get("id")}
    if item[field]:
        yield f"{name}.delta", {**place, "delta": item[field]}
    named = {"name": item["name"]} if field == "arguments" else {}
    yield f"{name}.done", {**place, field: item[field], **named}


def _parts(item: dict[str, Any], place: dict[str, Any]) -> Iterator[TypedEvent]:
    """Yield the parts of a message, or of a reasoning item, whose summary is in its start."""
    begun = {**item, "content": [], "status": "in_progress"}
    if item["type"] == "reasoning":
        del begun["content"]
    yield "response.output_item.added", {**place, "item": begun}
    for index, part in enumerate(item.get("content") or ()):
        where = {**place, "item_id": item.get("id"), "content_index": index}
        field = _PARTS.get(part["type"])
        yield "response.content_part.added", {**where, "part": part if field is None else _opened(part, field)}
        if field is not None:
            yield from _text(part, field, where)
        yield "response.content_part.done", {**where, "part": part}


def _opened(part: dict[str, Any], field: str) -> dict[str, Any]:
    return {**part, field: ""} | ({"logprobs": []} if "logprobs" in part else {})


def _text(part: dict[str, Any], field: str, where: dict[str, Any]) -> Iterator[TypedEvent]:
    name, text = f"response.{part['type']}", part[field]
    has_logprobs = part["type"] == "output_text"
    if text:
        logprobs = {"logprobs": _logprobs(part.get("logprobs") or ())} if has_logprobs else {}
        yield f"{name}.delta", {**where, "delta": text, **logprobs}
    yield f"{name}.done", {**where, field: text, **({"logprobs": []} if has_logprobs else {})}


def _logprobs(logprobs: Any) -> list[dict[str, Any]]:
    """Return log probabilities as deltas contain them, without bytes."""
    return [
        {**_shown(token), "top_logprobs": [_shown(other) for other in token.get("top_logprobs") or ()]}
        for token in logprobs
    ]


def _shown(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token["token"], "logprob": token["logprob"]}

"""OpenAI's response and its events, as vLLM sends them (``entrypoints/openai/responses/streaming_events.py``).

The last event of a stream carries the whole response, so there is nothing to add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caching.replay.typed_events import event

#: Of an answer that its own limit ended. The other reason, a filter's, is no answer to give again.
_LIMIT = "max_output_tokens"
#: Parts that hold a text, and the field that it stands in.
_PARTS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
#: How a call is told: (its field, how the names of its events begin).
_CALLS = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}

Told = tuple[str, dict[str, Any]]


def is_whole(response: dict[str, Any]) -> bool:
    """Say whether the response came to an end of its own, or of its limit, and says what it took."""
    status, why = response.get("status"), response.get("incomplete_details") or {}
    ended = status == "completed" or (status == "incomplete" and why.get("reason") == _LIMIT)
    return bool(ended and response.get("usage")) and isinstance(response.get("output"), list)


def stream(response: dict[str, Any]) -> Iterator[bytes]:
    """Tell a response as numbered events, each text in one delta; the last one carries all of it.

    That one is ``response.completed`` whatever the status, as vLLM and the helper of OpenAI's SDK have it.
    """
    for number, (kind, fields) in enumerate(_told(response)):
        yield event(kind, {"sequence_number": number, **fields})


def _told(response: dict[str, Any]) -> Iterator[Told]:
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


def _call(item: dict[str, Any], place: dict[str, Any]) -> Iterator[Told]:
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


def _parts(item: dict[str, Any], place: dict[str, Any]) -> Iterator[Told]:
    """Tell the parts of a message, or of a thought, whose summary comes with its start."""
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


def _text(part: dict[str, Any], field: str, where: dict[str, Any]) -> Iterator[Told]:
    name, text = f"response.{part['type']}", part[field]
    logged = part["type"] == "output_text"
    if text:
        likely = {"logprobs": _likely(part.get("logprobs") or ())} if logged else {}
        yield f"{name}.delta", {**where, "delta": text, **likely}
    yield f"{name}.done", {**where, field: text, **({"logprobs": []} if logged else {})}


def _likely(logprobs: Any) -> list[dict[str, Any]]:
    """Return likelihoods as deltas have them, without bytes."""
    return [
        {**_shown(token), "top_logprobs": [_shown(other) for other in token.get("top_logprobs") or ()]}
        for token in logprobs
    ]


def _shown(token: dict[str, Any]) -> dict[str, Any]:
    return {"token": token["token"], "logprob": token["logprob"]}

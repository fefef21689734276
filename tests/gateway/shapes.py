"""An answer of each protocol in both shapes, as vLLM gives it: choices, calls, thoughts, likelihoods, split texts."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.gateway.engines import HEAD, USAGE, Say, chunk, events, stream
from tests.gateway.protocols import MESSAGE_USAGE, named

_FUNCTION = {"name": "weather", "arguments": '{"city":"Paris"}'}
_CALLS = [{"id": f"call_{n}", "type": "function", "function": _FUNCTION} for n in range(2)]


def _likely(token: str) -> dict[str, Any]:
    shown = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
    return {**shown, "top_logprobs": [shown]}


CHAT: dict[str, Any] = {
    **HEAD,
    "object": "chat.completion",
    "system_fingerprint": "fp",
    "service_tier": None,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Grüße 👋", "reasoning": "Hmm.", "refusal": None},
            "logprobs": {"content": [_likely("Gr"), _likely("üße 👋")]},
            "finish_reason": "stop",
            "stop_reason": "END",
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": "", "tool_calls": _CALLS, "refusal": None},
            "logprobs": None,
            "finish_reason": "tool_calls",
            "stop_reason": None,
        },
    ],
    "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 1}},
}


def _delta(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more})


def _called(number: int, **function: str) -> dict[str, Any]:
    opened = {"id": f"call_{number}", "type": "function"} if "name" in function else {}
    return _delta(1, {"tool_calls": [{"index": number, **opened, "function": function}]})


CHAT_EVENTS = events(
    [
        _delta(0, {"role": "assistant", "content": ""}),
        _delta(1, {"role": "assistant", "content": ""}),
        _delta(0, {"reasoning": "Hmm."}),
        _called(0, name="weather", arguments=""),
        _delta(0, {"content": "Gr"}, logprobs={"content": [_likely("Gr")]}),
        _called(0, arguments='{"city":'),
        _called(0, arguments='"Paris"}'),
        _called(1, name="weather", arguments='{"city":"Paris"}'),
        _delta(
            0, {"content": "üße 👋"}, logprobs={"content": [_likely("üße 👋")]}, finish_reason="stop", stop_reason="END"
        ),
        _delta(1, {}, finish_reason="tool_calls", stop_reason=None),
        chunk(usage=CHAT["usage"], system_fingerprint="fp"),
    ]
)

COMPLETION: dict[str, Any] = {
    **HEAD,
    "object": "text_completion",
    "choices": [
        {
            "index": index,
            "text": "Hello",
            "logprobs": {
                "tokens": ["Hel", "lo"],
                "token_logprobs": [-0.5, -0.5],
                "text_offset": [0, 3],
                "top_logprobs": [{"Hel": -0.5}, {"lo": -0.5}],
            },
            "finish_reason": "length",
            "stop_reason": None,
        }
        for index in range(2)
    ],
    "usage": USAGE,
}


def _text(index: int, text: str, offset: int, finish: str | None) -> dict[str, Any]:
    logged = {"tokens": [text], "token_logprobs": [-0.5], "text_offset": [offset], "top_logprobs": [{text: -0.5}]}
    choice = {"index": index, "text": text, "logprobs": logged, "finish_reason": finish, "stop_reason": None}
    return {**HEAD, "object": "text_completion", "choices": [choice]}


COMPLETION_EVENTS = events(
    [
        _text(0, "Hel", 0, None),
        _text(1, "Hel", 0, None),
        _text(1, "lo", 3, "length"),
        _text(0, "lo", 3, "length"),
        {**HEAD, "object": "text_completion", "choices": [], "usage": USAGE},
    ]
)

MESSAGE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "type": "message",
    "role": "assistant",
    "model": "demo",
    "content": [
        {"type": "thinking", "thinking": "Hmm.", "signature": "5ea1"},
        {"type": "text", "text": "Grüße 👋"},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Paris"}},
    ],
    "stop_reason": "tool_use",
    "usage": MESSAGE_USAGE,
}
_BEGUN: dict[str, Any] = {
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 0},
}


def _block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    told = [named("content_block_delta", index=index, delta=delta) for delta in deltas]
    stopped = named("content_block_stop", index=index)
    return [named("content_block_start", index=index, content_block=block), *told, stopped]


MESSAGE_EVENTS = [
    named("message_start", message={**MESSAGE, **_BEGUN}),
    *_block(
        0,
        {"type": "thinking", "thinking": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "m."},
        {"type": "signature_delta", "signature": "5ea1"},
    ),
    *_block(
        1,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "Gr"},
        {"type": "text_delta", "text": "üße 👋"},
    ),
    *_block(
        2,
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"city": "Pa'},
        {"type": "input_json_delta", "partial_json": 'ris"}'},
    ),
    named("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage=MESSAGE_USAGE),
    named("message_stop"),
]

_THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hmm."}]}
_SPOKEN = {"type": "output_text", "text": "Grüße 👋", "annotations": [], "logprobs": [_likely("Gr"), _likely("üße 👋")]}
_SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": [_SPOKEN]}
_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_0", **_FUNCTION}
_ITEMS: list[dict[str, Any]] = [{**item, "status": "completed"} for item in (_THOUGHT, _SAID, _CALL)]
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "demo",
    "status": "completed",
    "incomplete_details": None,
    "output": _ITEMS,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 15,
    },
}


def _numbered(told: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    return [named(kind, sequence_number=number, **fields) for number, (kind, fields) in enumerate(told)]


def _part(item: int, kind: str, name: str, deltas: list[str], part: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    place: dict[str, Any] = {"output_index": item, "item_id": _ITEMS[item]["id"], "content_index": 0}
    logged: dict[str, Any] = {"logprobs": []} if "logprobs" in part else {}
    return [
        ("response.content_part.added", {**place, "part": {**part, "text": "", **logged}}),
        *((f"response.{name}.delta", {**place, "delta": delta, **logged}) for delta in deltas),
        (f"response.{name}.done", {**place, "text": part["text"], **logged}),
        ("response.content_part.done", {**place, "part": part}),
    ]


def _response_events() -> list[bytes]:
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    told: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    inner = [
        _part(0, "reasoning", "reasoning_text", ["Hm", "m."], _THOUGHT["content"][0]),  # type: ignore[arg-type]
        _part(1, "message", "output_text", ["Gr", "üße 👋"], _SPOKEN),
        [
            ("response.function_call_arguments.delta", {"output_index": 2, "item_id": "fc_1", "delta": '{"city":'}),
            ("response.function_call_arguments.delta", {"output_index": 2, "item_id": "fc_1", "delta": '"Paris"}'}),
            ("response.function_call_arguments.done", {"output_index": 2, "item_id": "fc_1", **_FUNCTION}),
        ],
    ]
    for index, (item, between) in enumerate(zip(_ITEMS, inner, strict=True)):
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        added = {"output_index": index, "item": {**item, **empty, "status": "in_progress"}}
        told += [("response.output_item.added", added), *between]
        told.append(("response.output_item.done", {"output_index": index, "item": item}))
    return _numbered([*told, ("response.completed", {"response": RESPONSE})])


RESPONSE_EVENTS = _response_events()

WHOLE = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGE,
    "/v1/responses": RESPONSE,
}
STREAMS = {
    "/v1/chat/completions": CHAT_EVENTS,
    "/v1/completions": COMPLETION_EVENTS,
    "/v1/messages": MESSAGE_EVENTS,
    "/v1/responses": RESPONSE_EVENTS,
}


def in_both_shapes() -> Say:
    """Answer in the shape that was asked."""

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            return await stream(request, STREAMS[request.path])
        return web.json_response(WHOLE[request.path])

    return say

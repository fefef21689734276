"""What engines say on the other endpoints: responses, messages, embeddings, tokens; each tells the same usage."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from tests.gateway.engines import USAGE, stream

RESPONSE_USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}
MESSAGE_USAGE = {"input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 3}
_TEXT = {"type": "output_text", "text": "Hello", "annotations": []}
_ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [_TEXT]}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "demo",
    "status": "completed",
    "output": [_ITEM],
    "usage": RESPONSE_USAGE,
}
MESSAGE: dict[str, Any] = {
    "id": "chatcmpl-1",
    "type": "message",
    "role": "assistant",
    "model": "demo",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": MESSAGE_USAGE,
}
EMBEDDINGS: dict[str, Any] = {
    "id": "embd-1",
    "object": "list",
    "created": 1,
    "model": "demo",
    "data": [{"index": 0, "object": "embedding", "embedding": [0.5, -0.5]}],
    "usage": {"prompt_tokens": 12, "total_tokens": 12, "completion_tokens": 0, "prompt_tokens_details": None},
}
TOKENS: dict[str, Any] = {"count": 2, "max_model_len": 2048, "tokens": [1, 2], "token_strs": None}
COUNT: dict[str, Any] = {"input_tokens": 12, "context_management": {"original_input_tokens": 12}}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": COUNT,
    "/v1/embeddings": EMBEDDINGS,
    "/tokenize": TOKENS,
    "/detokenize": {"prompt": "Hello"},
}


def named(kind: str, **fields: Any) -> bytes:
    """Return one typed event."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


RESPONSE_EVENTS = [
    named("response.created", response={**RESPONSE, "status": "in_progress", "output": [], "usage": None}),
    named("response.in_progress", response={**RESPONSE, "status": "in_progress", "output": [], "usage": None}),
    named("response.output_item.added", item={**_ITEM, "status": "in_progress", "content": []}),
    named("response.content_part.added", part={**_TEXT, "text": ""}),
    named("response.output_text.delta", delta="Hel"),
    named("response.output_text.delta", delta="lo"),
    named("response.output_text.done", text="Hello"),
    named("response.content_part.done", part=_TEXT),
    named("response.output_item.done", item=_ITEM),
    named("response.completed", response=RESPONSE),
]
MESSAGE_EVENTS = [
    named("message_start", message={**MESSAGE, "content": [], "usage": {**MESSAGE_USAGE, "output_tokens": 0}}),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hel"}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"}),
    named("content_block_stop", index=0),
    named("message_delta", delta={"stop_reason": "end_turn"}, usage=MESSAGE_USAGE),
    named("message_stop"),
]
STREAMS = {"/v1/responses": RESPONSE_EVENTS, "/v1/messages": MESSAGE_EVENTS}
assert MESSAGE_USAGE["input_tokens"] + 6 == RESPONSE_USAGE["input_tokens"] == USAGE["prompt_tokens"]


async def every_protocol(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Say hello in the words of the path that was asked."""
    if body.get("stream"):
        return await stream(request, STREAMS[request.path])
    return web.json_response(ANSWERS[request.path])

"""Anthropic's /v1/messages on top of chat, as in vLLM: bodies, replies, events, errors."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from workers.simulated.engine.jobs import Job
from workers.simulated.engine.text_generator import Token
from workers.simulated.http.openai_replies import finish_reason
from workers.simulated.requests.errors import ApiError, InvalidBody
from workers.simulated.requests.field_reader import FieldReader

PATH = "/v1/messages"
#: Fields that chat has under the same name.
SAME = ("model", "temperature", "top_p", "top_k", "stream", "cache_salt", "chat_template_kwargs")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request that corresponds to a message request. Raises InvalidBody."""
    chat = counted_body(body, "max_tokens")
    chat |= {name: body[name] for name in SAME if name in body}
    # vLLM sets both; this is the one that it names in errors.
    chat["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    return chat


def counted_body(body: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the part of a request that makes its prompt, as a chat request. Raises InvalidBody."""
    _check(body, required)
    turns: list[dict[str, Any]] = []
    if system := _text(body.get("system"), joint=""):
        turns.append({"role": "system", "content": system})
    for message in body["messages"]:
        turns.extend(_turns(message))
    chat: dict[str, Any] = {"model": body["model"], "messages": turns}
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
        choice = body.get("tool_choice") or {"type": "auto"}
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = named if choice.get("type") == "tool" else CHOICES.get(str(choice.get("type")), "auto")
    return chat


def error_body(error: ApiError) -> dict[str, Any]:
    """Return Anthropic's envelope, except for an invalid body, which vLLM rejects before that stage."""
    if isinstance(error, InvalidBody):
        return error.body()
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}


class MessageEvents:
    """Formats a job's reply as one message with one block: text, or the call of a tool."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._run = job.runs[0]
        self._finish: str | None = None
        self._open = False

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the message without null fields, as in vLLM."""
        block = {"type": "text", "text": texts[0]}
        if self._job.tool is not None:
            block = self._call() | {"input": orjson.loads(texts[0])}
        reason, sequence = self._stop(self._run.finish_reason)
        message = self._message([block]) | {"stop_reason": reason, "stop_sequence": sequence, "usage": self._usage()}
        return {name: value for name, value in message.items() if value is not None}

    def opening(self) -> bytes:
        """Return the start of the message; its usage counts the whole prompt."""
        usage = {"input_tokens": self._job.prompt_tokens, "output_tokens": 0}
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def delta(self, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> bytes:
        """Return a delta, preceded by the block's start if it is the first."""
        self._finish = finish
        text = "".join(token.text for token in tokens)
        if not text:
            return b""
        started = b"" if self._open else self._start()
        delta = {"type": "text_delta", "text": text}
        if self._job.tool is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        return started + _event("content_block_delta", delta=delta, index=index)

    def ending(self) -> bytes:
        """Return the block's end, the usage and the message's end."""
        reason, sequence = self._stop(self._finish)
        stopped = _event("content_block_stop", index=0) if self._open else b""
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return stopped + _event("message_delta", delta=delta, usage=self._usage()) + _event("message_stop")

    def _start(self) -> bytes:
        self._open = True
        block = {"type": "text", "text": ""} if self._job.tool is None else self._call()
        return _event("content_block_start", content_block=block, index=0)

    def _call(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": self._job.tool_call_id(0), "name": self._job.tool, "input": {}}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        job = self._job
        return {"id": job.id, "type": "message", "role": "assistant", "content": content, "model": job.model}

    def _stop(self, finish: str | None) -> tuple[str | None, str | None]:
        reason = finish_reason(self._job, finish)
        if reason == "length":
            return "max_tokens", None
        if reason not in {"stop", "tool_calls"}:
            return None, None
        if self._job.tool is not None:
            return "tool_use", None
        stopped_by = self._run.generated.stop_reason
        return ("end_turn", None) if stopped_by is None else ("stop_sequence", stopped_by)

    def _usage(self) -> dict[str, int]:
        """Return the usage; Anthropic's input tokens exclude those read from and written to the cache."""
        run = self._run
        return {
            "input_tokens": max(0, self._job.prompt_tokens - run.cached_tokens - run.created_tokens),
            "output_tokens": self._job.completion_tokens,
            "cache_creation_input_tokens": run.created_tokens,
            "cache_read_input_tokens": run.cached_tokens,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def _check(body: Mapping[str, Any], required: Sequence[str]) -> None:
    reader = FieldReader(dict(body))
    for name in ("model", "messages", *required):
        if name not in body:
            reader.missing(name)
    model = reader.text("model")
    if model == "":
        reader.invalid("model", "Model is required")
    if "messages" in body and not isinstance(body["messages"], list):
        reader.wrong("list_type", "messages", "Input should be a valid list", body["messages"])
    limit = reader.integer("max_tokens")
    if required and limit is not None and limit <= 0:
        reader.invalid("max_tokens", "max_tokens must be positive")
    reader.finish()


def _turns(message: Any) -> list[dict[str, Any]]:
    """Return the chat messages for one message: results of tools come before the rest."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return [message]
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in message["content"]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _image_url(block.get("source") or {})}})
        elif kind == "tool_use":
            calls.append({"id": block.get("id"), "type": "function", "function": {"name": block.get("name")}})
        elif kind == "tool_result":
            results.append({"role": "tool", "content": _text(block.get("content"), joint="\n")})
    if not parts and not calls:
        return results
    content = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    turn: dict[str, Any] = {"role": message.get("role"), "content": content}
    return [*results, turn | ({"tool_calls": calls} if calls else {})]


def _image_url(source: Mapping[str, Any]) -> str:
    if source.get("type") == "url":
        return str(source.get("url", ""))
    return f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"


def _text(content: Any, *, joint: str) -> str:
    if isinstance(content, list):
        return joint.join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema") or {}}}

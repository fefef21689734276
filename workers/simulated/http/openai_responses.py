"""OpenAI's /v1/responses on top of chat, as in vLLM: bodies, replies, events. Nothing is stored."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from workers.simulated.engine.jobs import Job, new_id
from workers.simulated.engine.text_generator import Token
from workers.simulated.http.openai_replies import chat_logprobs
from workers.simulated.requests.errors import ApiError
from workers.simulated.requests.field_reader import FieldReader

LIMIT = "max_output_tokens"
LOGPROBS = "message.output_text.logprobs"
#: Fields that chat has under the same name.
SAME = (
    *("model", "temperature", "top_p", "top_k", "stream", "cache_salt", "user", "session_id", "priority", "seed"),
    *("stop", "ignore_eos", "include_stop_str_in_output", "presence_penalty", "frequency_penalty"),
)
#: Fields that a function in a reply has in addition to its definition.
UNSET_TOOL = ("allowed_callers", "async", "defer_loading", "description", "output_schema")


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request that corresponds to a response request. Raises ApiError."""
    given = _input(body)
    if (earlier := body.get("previous_response_id")) is not None:
        message = f"Response with id '{earlier}' not found."
        raise ApiError(message, status=404, kind="invalid_request_error", param="response_id")
    turns: list[dict[str, Any]] = []
    if body.get("instructions"):
        turns.append({"role": "system", "content": body["instructions"]})
    turns.extend([{"role": "user", "content": given}] if isinstance(given, str) else map(_turn, given))
    chat: dict[str, Any] = {"messages": turns} | {name: body[name] for name in SAME if name in body}
    chat["max_tokens"] = body.get(LIMIT)
    if LOGPROBS in (body.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if body.get("tools"):
        chat["tools"] = [{"type": "function", "function": tool} for tool in body["tools"]]
        choice = body.get("tool_choice", "auto")
        chat["tool_choice"] = {"function": choice} if isinstance(choice, dict) else choice
    wanted = (body.get("text") or {}).get("format")
    if wanted:
        chat["response_format"] = {"type": wanted.get("type"), "json_schema": wanted}
    return chat


class ResponseEvents:
    """Formats a job's reply as one item: a message with text, or the call of a function."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._run = job.runs[0]
        self._item_id = f"{'msg' if job.tool is None else 'fc'}_{new_id()}"
        self._number = 0
        self._text = ""

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the response."""
        return self._response("incomplete" if self._cut() else "completed", [self._item(texts[0])])

    def opening(self) -> bytes:
        """Return the response without output, twice, as the protocol requires."""
        begun = self._response("in_progress", [])
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def delta(self, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> bytes:
        """Return a delta, preceded by the item's start if it is the first."""
        text = "".join(token.text for token in tokens)
        if not text:
            return b""
        started = b"" if self._text else self._start()
        self._text += text
        if self._job.tool is not None:
            kind = "response.function_call_arguments.delta"
            return started + self._event(kind, delta=text, item_id=self._item_id, output_index=0)
        logged = chat_logprobs(self._job, [token.id for token in tokens])
        likely = logged["content"] if logged is not None else []
        place = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        return started + self._event("response.output_text.delta", **place, delta=text, logprobs=likely)

    def ending(self) -> bytes:
        """Return the end events of the item and of the response, each with its whole content."""
        events = b"" if self._text else self._start()
        item = self._item(self._text)
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": 0}
        if self._job.tool is not None:
            kind = "response.function_call_arguments.done"
            events += self._event(kind, arguments=self._text, **place, name=self._job.tool)
        else:
            place = {"content_index": 0, **place}
            events += self._event("response.output_text.done", **place, logprobs=[], text=self._text)
            events += self._event("response.content_part.done", **place, part=item["content"][0])
        events += self._event("response.output_item.done", item=item, output_index=0)
        status = "incomplete" if self._cut() else "completed"
        return events + self._event("response.completed", response=self._response(status, [item]))

    def _start(self) -> bytes:
        item = self._item("", status="in_progress")
        if self._job.tool is not None:
            return self._event("response.output_item.added", item=item, output_index=0)
        added = self._event("response.output_item.added", item=item | {"content": []}, output_index=0)
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        place = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        return added + self._event("response.content_part.added", **place, part=part)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {**dict(sorted(fields.items())), "sequence_number": self._number, "type": kind}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"

    def _cut(self) -> bool:
        return self._run.finish_reason == "length"

    def _item(self, text: str, *, status: str = "completed") -> dict[str, Any]:
        job = self._job
        if job.tool is not None:
            named = {"arguments": text, "call_id": job.tool_call_id(0), "name": job.tool, "type": "function_call"}
            unset = {"async": None, "caller": None, "namespace": None}
            return {**named, "id": self._item_id, **unset, "status": status}
        logged = chat_logprobs(job, self._run.sent_ids)
        part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text"}
        part["logprobs"] = logged["content"] if logged is not None else None
        message = {"id": self._item_id, "content": [part], "role": "assistant"}
        return {**message, "status": status, "type": "message", "phase": None}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        job, body = self._job, self._job.body
        ended = status != "in_progress"
        return {
            "id": job.id,
            "created_at": job.created,
            "incomplete_details": {"reason": LIMIT} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": job.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": job.common.temperature,
            "tool_choice": body.get("tool_choice", "auto") if body.get("tools") else "none",
            "tools": [_described(tool) for tool in body.get("tools") or ()],
            "top_p": body.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": job.limit_tokens,
            "max_tool_calls": body.get("max_tool_calls"),
            **dict.fromkeys(("previous_response_id", "prompt", "reasoning")),
            "service_tier": body.get("service_tier", "auto"),
            "status": status,
            "text": body.get("text"),
            "top_logprobs": body.get("top_logprobs"),
            "truncation": body.get("truncation", "disabled"),
            "usage": self._usage() if ended else None,
            "user": body.get("user"),
            "presence_penalty": body.get("presence_penalty", 0.0),
            "frequency_penalty": body.get("frequency_penalty", 0.0),
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")),
        }

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self._job.prompt_tokens, self._job.completion_tokens
        turns: dict[str, list[int]] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        cached = {"cached_tokens": self._run.cached_tokens, "cache_write_tokens": self._run.created_tokens}
        written: dict[str, Any] = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        written |= {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {**cached, **turns},
            "output_tokens": completion,
            "output_tokens_details": written,
            "total_tokens": prompt + completion,
        }


def _input(body: Mapping[str, Any]) -> str | list[Any]:
    reader = FieldReader(dict(body))
    given = body.get("input")
    if "input" not in body:
        reader.missing("input")
    elif not isinstance(given, str | list):
        reader.wrong("string_type", "input", "Input should be a valid string", given)
        reader.wrong("list_type", "input", "Input should be a valid list", given)
    reader.integer(LIMIT)
    reader.finish()
    return given if isinstance(given, str) else list(given or ())


def _turn(item: Any) -> dict[str, Any]:
    """Return the chat message for one item of the input."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": [{"id": item.get("call_id"), "type": "function"}]}
    if kind == "function_call_output":
        return {"role": "tool", "content": item.get("output")}
    if not isinstance(item, dict):
        return {"role": None, "content": item}
    return {"role": item.get("role"), "content": item.get("content")}


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    known = {"name": tool.get("name"), "parameters": tool.get("parameters"), "strict": tool.get("strict")}
    return {**known, "type": "function", **{name: tool.get(name) for name in UNSET_TOOL}}

"""The JSON of vLLM's replies: whole replies, stream chunks, usage. Keys are in vLLM's order."""

import math
from collections.abc import Sequence
from typing import Any

import orjson

from workers.simulated.engine.engine import Run
from workers.simulated.engine.jobs import Job
from workers.simulated.engine.text_generator import Token
from workers.simulated.settings import VLLM_VERSION

FINGERPRINT = f"simulated-{VLLM_VERSION}"
DONE = b"data: [DONE]\n\n"
#: Every token has the same probability, because there is no model.
LOGPROB = -math.log(2)


class ChatReplies:
    """Formats a job's reply as OpenAI's chat and completion objects."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._started_calls: set[int] = set()

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the reply to a request without streaming."""
        return whole(self._job, texts)

    def opening(self) -> bytes:
        """Return the chunks that begin a chat's choices; a completion begins with its text."""
        if self._job.kind != "chat":
            return b""
        return b"".join(event(role_chunk(self._job, index)) for index in range(len(self._job.runs)))

    def delta(self, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> bytes:
        """Return one chunk, or for a tool call separate chunks: its name, its arguments, its end."""
        job = self._job
        if job.tool is None:
            return event(token_chunk(job, index, tokens, sent=sent, finish=finish))
        deltas: list[dict[str, Any]] = []
        if index not in self._started_calls:
            self._started_calls.add(index)
            opened = {"id": job.tool_call_id(index), "type": "function", "index": 0, "function": {"name": job.tool}}
            deltas.append({"content": None, "tool_calls": [opened]})
        if text := "".join(token.text for token in tokens):
            deltas.append({"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        chunks = [delta_chunk(job, index, tokens, delta, sent=sent) for delta in deltas]
        if finish is not None:
            reason = finish_reason(job, finish)
            chunks.append(delta_chunk(job, index, tokens, {}, sent=sent, finish=reason))
        return b"".join(map(event, chunks))

    def ending(self) -> bytes:
        """Return the usage, if it was requested, and the end of the stream."""
        return (event(usage_chunk(self._job)) if self._job.common.include_usage else b"") + DONE


def event(chunk: dict[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def whole(job: Job, texts: Sequence[str]) -> dict[str, Any]:
    """Return the reply to a request without streaming."""
    chat = job.kind == "chat"
    make = _chat_choice if chat else _completion_choice
    usage = _usage(job) | {"prompt_tokens_details": _details(job, stream=False), "completion_tokens_details": None}
    reply: dict[str, Any] = {
        "id": job.id,
        "object": "chat.completion" if chat else "text_completion",
        "created": job.created,
        "model": job.model,
        "choices": [make(job, index, text) for index, text in enumerate(texts)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage,
    }
    if chat:
        prompt_ids = list(job.runs[0].prompt) if job.common.return_token_ids else None
        reply |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
    return reply | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def role_chunk(job: Job, index: int) -> dict[str, Any]:
    """Return the chunk that begins one choice of a chat stream."""
    choice = {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    chunk = _chunk(job, choice)
    if job.common.continuous_usage:
        prompt = job.prompt_tokens
        chunk["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0}
        chunk["usage"]["completion_tokens_details"] = None
    prompt_ids = list(job.runs[index].prompt) if job.common.return_token_ids and index == 0 else None
    return chunk | {"prompt_token_ids": prompt_ids, "prompt_text": None}


def token_chunk(job: Job, index: int, tokens: Sequence[Token], *, sent: int, finish: str | None) -> dict[str, Any]:
    """Return the chunk of the tokens up to number ``sent``; a choice's last chunk has its finish reason."""
    run = job.runs[index]
    text = "".join(token.text for token in tokens)
    ids = [token.id for token in tokens] if job.common.return_token_ids else None
    stop_reason = run.generated.stop_reason if finish == "stop" else None
    if job.kind == "chat":
        return delta_chunk(job, index, tokens, {"content": text}, sent=sent, finish=finish)
    first = sent == len(tokens)
    choice: dict[str, Any] = {"index": index}
    choice["text"] = (job.echoes[index] + text) if first and job.common.echo else text
    choice |= {"logprobs": _text_logprobs(job, [t.id for t in tokens]), "finish_reason": finish}
    prompt_ids = list(run.prompt) if ids is not None and first else None
    choice |= {"stop_reason": stop_reason, "prompt_token_ids": prompt_ids, "token_ids": ids}
    return _counted(job, _chunk(job, choice), run, sent=sent, finish=finish)


def delta_chunk(
    job: Job,
    index: int,
    tokens: Sequence[Token],
    delta: dict[str, Any],
    *,
    sent: int,
    finish: str | None = None,
) -> dict[str, Any]:
    """Return a chunk of a chat that adds ``delta``, generated by ``tokens``."""
    run = job.runs[index]
    choice: dict[str, Any] = {"index": index, "delta": delta}
    choice |= {"logprobs": chat_logprobs(job, [t.id for t in tokens]), "finish_reason": finish}
    if finish is not None:
        choice["stop_reason"] = run.generated.stop_reason if finish == "stop" else None
    choice["token_ids"] = [token.id for token in tokens] if job.common.return_token_ids else None
    return _counted(job, _chunk(job, choice), run, sent=sent, finish=finish)


def finish_reason(job: Job, finish: str | None) -> str | None:
    """Return OpenAI's finish reason of a choice; a function that the request named ends with "stop"."""
    called = job.required_output is not None and job.required_output.tool is not None and not job.required_output.named
    return "tool_calls" if called and finish == "stop" else finish


def _counted(job: Job, chunk: dict[str, Any], run: Run, *, sent: int, finish: str | None) -> dict[str, Any]:
    if job.common.continuous_usage:
        prompt = len(run.prompt)
        chunk["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt + sent, "completion_tokens": sent}
        chunk["usage"]["completion_tokens_details"] = None
    if finish is not None and not job.common.include_usage:
        chunk["system_fingerprint"] = FINGERPRINT
    return chunk


def usage_chunk(job: Job) -> dict[str, Any]:
    """Return the chunk before [DONE] of a stream with usage, without absent details."""
    details = {name: value for name, value in _details(job, stream=True).items() if value is not None}
    chunk = _chunk(job, None)
    return chunk | {"usage": _usage(job) | {"prompt_tokens_details": details}, "system_fingerprint": FINGERPRINT}


def _chunk(job: Job, choice: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": "chat.completion.chunk" if job.kind == "chat" else "text_completion",
        "created": job.created,
        "model": job.model,
        "choices": [] if choice is None else [choice],
    }


def _usage(job: Job) -> dict[str, Any]:
    prompt, completion = job.prompt_tokens, job.completion_tokens
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _details(job: Job, *, stream: bool) -> dict[str, Any]:
    """Return the prompt's cached tokens. With several prompts vLLM gives the first's in a stream, else the last's."""
    run = job.runs[0] if stream or job.kind == "chat" else job.runs[-1]
    created = run.created_tokens if job.kind == "chat" else None
    return {"cached_tokens": run.cached_tokens, "created_cache_tokens": created, "multimodal_tokens": None}


def _generated(run: Run) -> list[int]:
    return run.sent_ids


def _chat_choice(job: Job, index: int, text: str) -> dict[str, Any]:
    run = job.runs[index]
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": None}
    message |= {"audio": None, "function_call": None}
    if job.tool is not None:
        called = {"id": job.tool_call_id(index), "type": "function", "function": {"name": job.tool, "arguments": text}}
        message |= {"content": "", "tool_calls": [called]}
    return {
        "index": index,
        "message": message | {"reasoning": None},
        "logprobs": chat_logprobs(job, _generated(run)),
        "finish_reason": finish_reason(job, run.finish_reason),
        "stop_reason": run.generated.stop_reason,
        "token_ids": _generated(run) if job.common.return_token_ids else None,
        "routed_experts": None,
    }


def _completion_choice(job: Job, index: int, text: str) -> dict[str, Any]:
    run = job.runs[index]
    return {
        "index": index,
        "text": (job.echoes[index] + text) if job.common.echo else text,
        "logprobs": _text_logprobs(job, _generated(run)),
        "finish_reason": run.finish_reason,
        "stop_reason": run.generated.stop_reason,
        "token_ids": _generated(run) if job.common.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(run.prompt) if job.common.return_token_ids else None,
        "routed_experts": None,
    }


def chat_logprobs(job: Job, ids: Sequence[int]) -> dict[str, Any] | None:
    """Return the log probabilities of tokens in chat's format, or None if they were not requested."""
    if job.common.logprobs is None:
        return None
    content: list[dict[str, Any]] = []
    for number in ids:
        text = job.tokenizer.decode([number])
        entry = {"token": text, "logprob": LOGPROB, "bytes": list(text.encode())}
        content.append(entry | {"top_logprobs": [entry] if job.common.logprobs > 0 else []})
    return {"content": content}


def _text_logprobs(job: Job, ids: Sequence[int]) -> dict[str, Any] | None:
    if job.common.logprobs is None:
        return None
    texts = [job.tokenizer.decode([number]) for number in ids]
    offsets = [sum(map(len, texts[:place])) for place in range(len(texts))]
    likely = [LOGPROB] * len(texts)
    top = [{text: LOGPROB} for text in texts]
    return {"text_offset": offsets, "token_logprobs": likely, "tokens": texts, "top_logprobs": top}

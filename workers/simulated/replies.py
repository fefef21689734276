"""The JSON that vLLM answers with: whole replies, stream chunks, usage. Keys stand in vLLM's order."""

import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from workers.simulated.answers import Token
from workers.simulated.engine import Run
from workers.simulated.schemas import Common
from workers.simulated.settings import VLLM_VERSION
from workers.simulated.tokens import Tokenizer

FINGERPRINT = f"simulated-{VLLM_VERSION}"
DONE = b"data: [DONE]\n\n"
#: Every token is equally likely: there is no model to ask.
LOGPROB = -math.log(2)


def new_id() -> str:
    """Return sixteen random hexadecimal digits."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One HTTP request for text: what was asked and the sequences that answer it, in order of their index."""

    kind: Literal["chat", "completion"]
    id: str
    model: str
    common: Common
    runs: tuple[Run, ...]
    echoes: tuple[str, ...]
    tokenizer: Tokenizer
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def prompts(self) -> int:
        """Return how many prompts the runs belong to: each has ``n`` of them."""
        return len(self.runs) // self.common.n

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens of all prompts, each counted once whatever ``n`` is."""
        return sum(len(run.prompt) for run in self.runs[:: self.common.n])

    @property
    def completion_tokens(self) -> int:
        """Return the tokens generated so far, the end token included."""
        return sum(run.sent_tokens for run in self.runs)


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
    """Return the chunk that opens one choice of a chat stream."""
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
    """Return the chunk of the tokens up to number ``sent``; the last of a choice carries its finish reason."""
    run = job.runs[index]
    text = "".join(token.text for token in tokens)
    ids = [token.id for token in tokens] if job.common.return_token_ids else None
    stop_reason = run.answer.stop_reason if finish == "stop" else None
    choice: dict[str, Any] = {"index": index}
    if job.kind == "chat":
        choice["delta"] = {"content": text}
        choice |= {"logprobs": _chat_logprobs(job, [t.id for t in tokens]), "finish_reason": finish}
        if finish is not None:
            choice["stop_reason"] = stop_reason
        choice["token_ids"] = ids
    else:
        first = sent == len(tokens)
        prompt_ids = list(run.prompt) if ids is not None and first else None
        choice["text"] = (job.echoes[index] + text) if first and job.common.echo else text
        choice |= {"logprobs": _text_logprobs(job, [t.id for t in tokens]), "finish_reason": finish}
        choice |= {"stop_reason": stop_reason, "prompt_token_ids": prompt_ids, "token_ids": ids}
    chunk = _chunk(job, choice)
    if job.common.continuous_usage:
        prompt = len(run.prompt)
        chunk["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt + sent, "completion_tokens": sent}
        chunk["usage"]["completion_tokens_details"] = None
    if finish is not None and not job.common.include_usage:
        chunk["system_fingerprint"] = FINGERPRINT
    return chunk


def usage_chunk(job: Job) -> dict[str, Any]:
    """Return the chunk before [DONE] of a stream that asked for usage; absent details are left out of it."""
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
    """Return the prompt's cache account. Of several prompts vLLM tells the first's in a stream, else the last's."""
    run = job.runs[0] if stream or job.kind == "chat" else job.runs[-1]
    created = run.created_tokens if job.kind == "chat" else None
    return {"cached_tokens": run.cached_tokens, "created_cache_tokens": created, "multimodal_tokens": None}


def _generated(run: Run) -> list[int]:
    return run.tokens[len(run.prompt) :]


def _chat_choice(job: Job, index: int, text: str) -> dict[str, Any]:
    run = job.runs[index]
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
    return {
        "index": index,
        "message": message | {"function_call": None, "reasoning": None},
        "logprobs": _chat_logprobs(job, _generated(run)),
        "finish_reason": run.finish_reason,
        "stop_reason": run.answer.stop_reason,
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
        "stop_reason": run.answer.stop_reason,
        "token_ids": _generated(run) if job.common.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": list(run.prompt) if job.common.return_token_ids else None,
        "routed_experts": None,
    }


def _chat_logprobs(job: Job, ids: Sequence[int]) -> dict[str, Any] | None:
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

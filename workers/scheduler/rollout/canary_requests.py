"""Send the prompts of a rollout's policy to one engine, and compare answers and times with its bounds. No Django."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workers.serving import answer_patterns
from workers.serving.canary import EMBEDDINGS, TEXT, CanaryResult, CanarySink, CanaryTarget
from workers.serving.rollout_policy import CanaryPrompt, RolloutPolicy

CHAT = "/v1/chat/completions"
#: Longest wait for the next piece of an answer, and for all answers of an engine together.
TIMEOUT_SECONDS = 60.0
LONGEST_SECONDS = 240.0
#: Of one event, and of one answer.
MOST_BYTES = 1 << 20
#: Statuses of an engine whose model has no chat template.
NO_CHAT = frozenset({400, 404})
#: Errors of reading an answer that is cut off or malformed.
_BROKEN = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Characters of an answer that a note repeats.
SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether an engine passed, and with what: a sentence for operators."""

    passed: bool
    note: str


@dataclass(slots=True, kw_only=True)
class _Answer:
    """One answer. Times are seconds; ``problem`` is empty if it is complete."""

    status: int = 0
    text: str = ""
    problem: str = ""
    ttft: float = 0.0
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tpot(self) -> float:
        """Seconds from token to token; 0 for one token."""
        return (self.seconds - self.ttft) / (self.completion_tokens - 1) if self.completion_tokens > 1 else 0.0


def run(target: CanaryTarget, policy: RolloutPolicy, sink: CanarySink | None) -> Finding:
    """Send every prompt of the policy in turn; the first one that fails ends it.

    ``sink`` records each as usage. Raises what the sink raises when it cannot; that prompt is not sent.
    """
    slowest_first = slowest_next = 0.0
    until = time.monotonic() + LONGEST_SECONDS
    for number, prompt in enumerate(policy.canaries, start=1):
        answer = _ask(target, prompt, sink, until)
        if problem := _problem(answer, prompt, policy):
            return Finding(passed=False, note=f"prompt {number} of {len(policy.canaries)}: {problem}")
        slowest_first, slowest_next = max(slowest_first, answer.ttft), max(slowest_next, answer.tpot)
    times = f"first token within {slowest_first:.3g} s, then one each {slowest_next:.3g} s"
    return Finding(passed=True, note=f"{len(policy.canaries)} prompts answered, {times}")


def _problem(answer: _Answer, prompt: CanaryPrompt, policy: RolloutPolicy) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if answer.problem:
        return answer.problem
    if problem := _wrong_text(answer, prompt):
        return problem
    if policy.max_ttft_seconds is not None and answer.ttft > policy.max_ttft_seconds:
        return f"the first token took {answer.ttft:.3g} s, more than {policy.max_ttft_seconds:g}"
    if policy.max_tpot_seconds is not None and answer.tpot > policy.max_tpot_seconds:
        return f"each further token took {answer.tpot:.3g} s, more than {policy.max_tpot_seconds:g}"
    return ""


def _wrong_text(answer: _Answer, prompt: CanaryPrompt) -> str:
    """Return what is wrong with the text of an answer; empty if nothing is."""
    if prompt.contains and prompt.contains.casefold() not in answer.text.casefold():
        return f"the answer does not contain {prompt.contains[:SHOWN]!r}: {answer.text[:SHOWN]!r}"
    if prompt.equals and prompt.equals.strip() != answer.text.strip():
        return f"the answer is not {prompt.equals[:SHOWN]!r}: {answer.text[:SHOWN]!r}"
    if prompt.matches and not answer_patterns.is_found(prompt.matches, answer.text):
        return f"the answer does not match {prompt.matches[:SHOWN]!r}: {answer.text[:SHOWN]!r}"
    if prompt.is_json and not _is_json(answer.text):
        return f"the answer is no JSON document: {answer.text[:SHOWN]!r}"
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _ask(target: CanaryTarget, prompt: CanaryPrompt, sink: CanarySink | None, until: float) -> _Answer:
    """Return the answer to a prompt: as a chat, and as text from a model without a chat template."""
    if target.embeds:
        return _recorded(target, EMBEDDINGS, {"input": prompt.prompt}, sink, until)
    asked: dict[str, Any] = {"max_tokens": prompt.max_tokens, "temperature": 0, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    chat = {"messages": [{"role": "user", "content": prompt.prompt}], **asked}
    answer = _recorded(target, CHAT, chat, sink, until)
    return (
        answer
        if answer.status not in NO_CHAT
        else _recorded(target, TEXT, {"prompt": prompt.prompt, **asked}, sink, until)
    )


def _recorded(target: CanaryTarget, path: str, body: dict[str, Any], sink: CanarySink | None, until: float) -> _Answer:
    canary = target.canary(path)
    if sink is not None:
        sink.begin(canary)
    answer = _sent(
        target, path, {"model": target.engine_name or target.model_name, **body}, str(canary.request_id), until
    )
    if sink is not None:
        sink.end(
            canary,
            CanaryResult(
                finished_at_ns=time.time_ns(),
                status=answer.status,
                prompt_tokens=answer.prompt_tokens - answer.cached_prompt_tokens,
                cached_prompt_tokens=answer.cached_prompt_tokens,
                completion_tokens=answer.completion_tokens,
                problem=answer.problem,
            ),
        )
    return answer


def _sent(target: CanaryTarget, path: str, body: dict[str, Any], request_id: str, until: float) -> _Answer:
    """Send a request on a connection of its own and read its answer until a time of ``time.monotonic``.

    An error of the network is the answer's problem.
    """
    answer, began = _Answer(), time.monotonic()
    link = target.connection(timeout_seconds=TIMEOUT_SECONDS)
    headers = {
        "authorization": f"Bearer {target.api_key}",
        "content-type": "application/json",
        "x-request-id": request_id,
    }
    try:
        link.request("POST", path, body=json.dumps(body).encode(), headers=headers)
        response = link.getresponse()
        answer.status = response.status
        if response.status != 200:
            answer.problem = f"status {response.status}: {response.read(SHOWN).decode(errors='replace')}"
        else:
            for document in _documents(response, streamed=bool(body.get("stream"))):
                _add(answer, document, time.monotonic() - began)
                if time.monotonic() > until:
                    raise TimeoutError
            answer.seconds = time.monotonic() - began
            answer.problem = answer.problem or ("" if answer.ttft else "it answered without a token")
    except TimeoutError:
        answer.problem = f"nothing for {TIMEOUT_SECONDS:g} s, or no end within {LONGEST_SECONDS:g} s for all prompts"
    except _BROKEN as error:
        answer.problem = f"the answer broke off: {type(error).__name__}: {error}"
    finally:
        link.close()
    return answer


def _documents(response: http.client.HTTPResponse, *, streamed: bool) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a response: those of its events, or the only one."""
    if not streamed:
        yield json.loads(_limited(response.read(MOST_BYTES + 1)))
        return
    left = MOST_BYTES
    while line := _limited(response.readline(MOST_BYTES + 1)):
        left -= len(line)
        if left < 0:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        data = line.strip().removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _limited(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    return data


def _add(answer: _Answer, document: dict[str, Any], seconds: float) -> None:
    """Add an event to the answer. ``seconds``: since the request was sent."""
    if "error" in document:
        answer.problem = f"the engine failed: {json.dumps(document['error'])[:SHOWN]}"
    piece = "".join(_text(choice) for choice in document.get("choices") or ())
    answer.text += piece
    if not answer.ttft and (piece or document.get("data")):
        answer.ttft = seconds
    if usage := document.get("usage"):
        answer.prompt_tokens = int(usage["prompt_tokens"])
        answer.cached_prompt_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        answer.completion_tokens = int(usage.get("completion_tokens") or 0)


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    return str(
        choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    )

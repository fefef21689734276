"""The prediction cache answers exact repeats of one tenant; the prefix cache is warm for one tenant only."""

from __future__ import annotations

import time
from uuid import uuid4

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.journey.instance import MODEL, Instance, Reply

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

#: vLLM on a CPU caches blocks of 32 tokens; this is well above a few of them.
LONG = "The list type holds objects in order. The dict type maps keys to values. A set holds each object once. " * 6


def cached(answer: Reply) -> int:
    """Return the prompt tokens the engine took from its prefix cache."""
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def finished(front: Instance) -> float:
    """Return how many requests the engines have finished, once that stays the same for a moment."""
    found, before = sum(engine.requests() for engine in front.engines()), -1.0
    while found != before:
        time.sleep(0.2)
        found, before = sum(engine.requests() for engine in front.engines()), found
    return found


def asked_twice(front: Instance) -> tuple[Reply, Reply, float]:
    """Ask the same twice, and return both answers and how many requests the engines finished meanwhile."""
    prompt = f"{uuid4()} {LONG}"
    before = finished(front)
    first = front.chat("acme", prompt)
    while finished(front) == before:  # an engine counts a request shortly after its response
        pass
    return first, front.chat("acme", prompt), finished(front) - before


def test_a_repeat_is_answered_without_the_engine(front: Instance) -> None:
    first, second, ran = asked_twice(front)
    while ran > 1:  # with a canary, which agents send every few seconds; a repeat that an engine runs never ends this
        first, second, ran = asked_twice(front)
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert second.json() == first.json()

    row = front.usage("acme", second.headers["x-request-id"])
    usage = first.json()["usage"]
    assert row["cache_result"] == "hit"
    assert (row["prompt_tokens"], row["cached_prompt_tokens"], row["completion_tokens"]) == (0, 0, 0)
    warm, written = cached(first), usage["completion_tokens"]
    fresh = usage["prompt_tokens"] - warm
    avoided = [row[f"avoided_{name}_tokens"] for name in ("prompt", "cached_prompt", "completion")]
    assert avoided == [fresh, warm, written]
    assert int(row["saved_prediction_pico"]) == fresh * 150_000 + warm * 15_000 + written * 600_000
    assert row["source_id"] == first.headers["x-request-id"]
    assert row["avoided_engine_ms"] > 0


def test_another_tenant_shares_neither_cache(front: Instance) -> None:
    prompt = f"{uuid4()} {LONG}"
    assert front.chat("acme", prompt, temperature=0).headers["x-cache"] == "miss"
    assert front.chat("acme", prompt, temperature=0).headers["x-cache"] == "hit"
    foreign = front.chat("globex", prompt, temperature=0)
    assert foreign.headers["x-cache"] == "miss"
    assert cached(foreign) == 0


def test_a_client_cannot_name_another_tenants_salt(front: Instance) -> None:
    prompt = f"{uuid4()} {LONG}"
    front.chat("acme", prompt, cache_salt="shared", prompt_cache_key="shared", user="shared")
    foreign = front.chat("globex", prompt, cache_salt="shared", prompt_cache_key="shared", user="shared", seed=1)
    assert foreign.headers["x-cache"] == "miss"
    assert cached(foreign) == 0


def test_past_the_prediction_cache_the_prefix_cache_is_warm(front: Instance) -> None:
    prompt = f"{uuid4()} {LONG}"
    bypass = {"cache-control": "no-store"}
    first = front.chat("acme", prompt, headers=bypass)
    second = front.chat("acme", prompt, headers=bypass)
    assert first.headers["x-cache"] == second.headers["x-cache"] == "bypass"
    assert second.headers["x-cache-reason"] == "no-store"
    assert cached(first) == 0
    assert cached(second) > 0
    row = front.usage("acme", second.headers["x-request-id"])
    assert row["cached_prompt_tokens"] == cached(second)
    assert int(row["saved_prefix_pico"]) == cached(second) * (150_000 - 15_000)


def question(about: str) -> list[ChatCompletionMessageParam]:
    """Return a conversation that nobody has had before."""
    return [{"role": "user", "content": f"{uuid4()} What is {about}?"}]


def streamed(sdk: openai.OpenAI, messages: list[ChatCompletionMessageParam]) -> tuple[str, str]:
    """Return a stream's text and its header about the prediction cache."""
    with sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=9, stream=True) as stream:
        told = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        return told, stream.response.headers["x-cache"]


def test_an_answer_stored_whole_is_replayed_as_a_stream_and_back(front: Instance) -> None:
    sdk = front.sdk("acme")
    asked = question("a tuple")
    whole = sdk.chat.completions.create(model=MODEL, messages=asked, max_tokens=9)
    assert streamed(sdk, asked) == (whole.choices[0].message.content, "hit")

    other = question("a class")
    told, cache = streamed(sdk, other)
    raw = sdk.chat.completions.with_raw_response.create(model=MODEL, messages=other, max_tokens=9)
    assert (cache, raw.headers["x-cache"]) == ("miss", "hit")
    assert raw.parse().choices[0].message.content == told


def test_globex_caches_what_is_deterministic_only(front: Instance) -> None:
    prompt = str(uuid4())
    assert [front.chat("globex", prompt).headers["x-cache"] for _ in range(2)] == ["bypass", "bypass"]
    assert [front.chat("globex", prompt, temperature=0).headers["x-cache"] for _ in range(2)] == ["miss", "hit"]

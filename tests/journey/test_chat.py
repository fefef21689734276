"""A tenant chats with real vLLM through the gateway."""

from __future__ import annotations

from uuid import uuid4

import openai
import pytest

from tests.journey.instance import MODEL, Instance

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]


def test_the_sdk_lists_the_model(front: Instance) -> None:
    models = front.sdk("acme").models.list()
    assert [model.id for model in models] == [MODEL]


def test_the_sdk_chats(front: Instance) -> None:
    answer = front.sdk("globex").chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "What is a list?"}], max_tokens=12
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_sdk_streams_and_sees_usage_only_when_it_asks(front: Instance) -> None:
    for asked in (True, False):
        options = {"stream_options": {"include_usage": True}} if asked else {}
        chunks = list(
            front.sdk("globex").chat.completions.create(  # type: ignore[call-overload]
                model=MODEL,
                messages=[{"role": "user", "content": "What is a module?"}],
                max_tokens=12,
                stream=True,
                **options,
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert text
        assert len(usages) == int(asked)


def test_the_sdk_completes_a_prompt(front: Instance) -> None:
    answer = front.sdk("globex").completions.create(model=MODEL, prompt="The Python", max_tokens=6)
    assert answer.choices[0].text
    streamed = front.sdk("globex").completions.create(model=MODEL, prompt="The Python", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed)


def test_every_answer_names_its_request_and_its_usage_row(front: Instance) -> None:
    answer = front.chat("globex", "Name one thing.", headers={"x-request-id": "mine-1"}, temperature=0.9)
    assert answer.status == 200
    assert answer.headers["x-client-request-id"] == "mine-1"
    assert answer.headers["x-cache"] == "bypass"
    assert answer.headers["x-cache-reason"] == "sampled"
    usage = answer.json()["usage"]
    row = front.usage("globex", answer.headers["x-request-id"])
    assert row["state"] == "complete"
    assert row["tokens_source"] == "engine"
    assert row["prompt_tokens"] + row["cached_prompt_tokens"] == usage["prompt_tokens"]
    assert row["completion_tokens"] == usage["completion_tokens"]
    assert int(row["amount_pico"]) == (
        row["prompt_tokens"] * 150_000 + row["cached_prompt_tokens"] * 15_000 + row["completion_tokens"] * 600_000
    )


def test_a_stream_is_metered_as_exactly_as_an_answer(front: Instance) -> None:
    with (
        front.sdk("globex")
        .chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Tell me of files."}],
            max_tokens=10,
            stream=True,
            stream_options={"include_usage": True},
        )
        .parse() as stream
    ):
        request_id = stream.response.headers["x-request-id"]
        usage = next(chunk.usage for chunk in stream if chunk.usage)
    row = front.usage("globex", request_id)
    assert (row["prompt_tokens"] + row["cached_prompt_tokens"], row["completion_tokens"]) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )


def test_limits_are_told_and_hold(front: Instance) -> None:
    slug = f"limited-{uuid4().hex[:8]}"
    made = front.operator("/tenants", {"slug": slug, "name": "Limited"})
    assert made.status == 201, made
    limited = front.operator(f"/tenants/{slug}/limits", {"requests_per_minute": 3}, method="PUT")
    assert limited.status == 200, limited
    key = front.operator(f"/tenants/{slug}/keys", {"name": "k"}).json()["secret"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    answers = [front.call("/chat/completions", key, body) for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["2", "1", "0", "0", "0"]
    assert answers[3].json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 20
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=front.api_base, api_key=key, max_retries=0).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )

"""What the gateway relies on of real vLLM's other endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from tests.journey.instance import MODEL, Instance, Reply

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

QUESTION = [{"role": "user", "content": "What does a context leave?"}]
#: No answer gets far without one of these.
SOON = ["a", "e", "i", " "]


def ask(front: Instance, path: str, **body: Any) -> Reply:
    """Ask as acme, at temperature 0, and past the prediction cache."""
    headers = {"cache-control": "no-store", "anthropic-version": "2023-06-01"}
    return front.call(path, front.key("acme"), {"model": MODEL, "temperature": 0, **body}, headers=headers)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": QUESTION, "max_completion_tokens": 10**9, "stop": SOON}),
        ("/chat/completions", {"messages": QUESTION, "max_tokens": 10**9, "stop": SOON}),
        ("/completions", {"prompt": "def f(x):", "max_tokens": 10**9, "stop": SOON}),
        ("/responses", {"input": "What?", "max_output_tokens": 10**9, "stop": SOON}),
        ("/messages", {"messages": QUESTION, "max_tokens": 10**9, "stop_sequences": SOON}),
    ],
)
def test_nobody_is_refused_for_asking_for_too_many_tokens(front: Instance, path: str, body: dict[str, Any]) -> None:
    got = ask(front, path, **body)
    assert got.status == 200, got.json()
    assert float(got.headers["x-cost-usd"]) > 0


def test_a_count_of_tokens_is_what_the_answer_reports_and_costs_nothing(front: Instance) -> None:
    counted = ask(front, "/messages/count_tokens", messages=QUESTION, system="Be brief.")
    answered = ask(front, "/messages", messages=QUESTION, system="Be brief.", max_tokens=2).json()["usage"]
    prompt = sum(answered.get(name) or 0 for name in answered if name.endswith("input_tokens"))
    assert (counted.status, counted.json()["input_tokens"]) == (200, prompt)
    assert "x-cost-usd" not in counted.headers


def test_tokens_turn_into_text_and_back(front: Instance) -> None:
    text = "import os, sys"
    tokens = ask(front, "/tokenize", prompt=text, add_special_tokens=False).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert ask(front, "/detokenize", tokens=tokens["tokens"]).json() == {"prompt": text}


def test_a_model_that_writes_does_not_embed_and_says_so(front: Instance) -> None:
    got = ask(front, "/embeddings", input="Hello")
    assert (got.status, got.json()["error"]["code"]) == (400, "endpoint_not_supported")


@pytest.mark.parametrize(("path", "field"), [("/responses", "input"), ("/messages", "messages")])
def test_a_prompt_that_does_not_fit_is_told_from_other_refusals(front: Instance, path: str, field: str) -> None:
    text = "word " * 20_000
    prompt = text if field == "input" else [{"role": "user", "content": text}]
    got = ask(front, path, **{field: prompt, "max_tokens": 2})
    assert got.status == 400
    assert "maximum context length" in got.json()["error"]["message"]

"""Bad input gets the documented error, and nothing is billed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.journey.instance import MODEL, Instance, request

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

USER = [{"role": "user", "content": "Hello"}]


def billed(front: Instance, slug: str) -> tuple[int, int]:
    """Return (amount, tokens) of everything the tenant was ever charged."""
    totals = front.operator(f"/usage/totals?tenant={slug}").json()["total"]
    tokens = totals["prompt_tokens"] + totals["cached_prompt_tokens"] + totals["completion_tokens"]
    return int(totals["amount_pico"]), int(tokens)


#: Body, status, code and parameter of the error.
BAD: list[tuple[Any, int, str, str | None]] = [
    (b'{"model": ', 400, "invalid_json", None),
    (b"[1, 2]", 400, "invalid_type", None),
    ({"messages": USER}, 400, "missing_field", "model"),
    ({"model": MODEL}, 400, "missing_field", "messages"),
    ({"model": MODEL, "messages": []}, 400, "invalid_value", "messages"),
    ({"model": MODEL, "messages": "Hello"}, 400, "invalid_type", "messages"),
    ({"model": MODEL, "messages": ["Hello"]}, 400, "invalid_type", "messages[0]"),
    ({"model": MODEL, "messages": USER, "stream": "yes"}, 400, "invalid_type", "stream"),
    ({"model": MODEL, "messages": USER, "max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ({"model": MODEL, "messages": USER, "temperature": "hot"}, 400, "invalid_type", "temperature"),
    ({"model": MODEL, "messages": USER, "temperature": -3}, 400, "invalid_request", "temperature"),
    ({"model": "no-such-model", "messages": USER}, 404, "model_not_found", "model"),
    (
        {"model": MODEL, "messages": [{"role": "user", "content": "w " * 20_000}]},
        400,
        "context_length_exceeded",
        None,
    ),
]


def reached_the_totals(*fronts: Instance) -> None:
    """Wait until the totals have what each of them served: the drain stores each process's log in order."""
    for front in fronts:
        answer = front.chat("acme", "Hello", headers={"cache-control": "no-store"})
        front.usage("acme", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    ("body", "status", "code", "param"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_bad_request_is_told_what_was_wrong(
    front: Instance, body: Any, status: int, code: str, param: str | None
) -> None:
    answer = front.call("/chat/completions", front.key("globex"), body)
    assert (answer.status, answer.json()["error"]["code"]) == (status, code)
    if param is not None:
        assert answer.json()["error"]["param"] == param
    assert set(answer.json()["error"]) == {"message", "type", "param", "code", "doc_url"}


def test_bad_requests_cost_nothing(instance: Instance, front: Instance) -> None:
    reached_the_totals(instance, front)
    before = billed(front, "globex")
    statuses = [front.call("/chat/completions", front.key("globex"), body).status for body, *_ in BAD]
    assert statuses == [status for _, status, *_ in BAD]
    reached_the_totals(instance, front)
    assert billed(front, "globex") == before


def test_an_oversized_body_is_refused(front: Instance) -> None:
    answer = front.call("/chat/completions", front.key("globex"), b" " * (10 * 1024 * 1024 + 1))
    assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("", "missing_api_key"),
        ("sk-not-ours", "invalid_api_key"),
        ("hk_aaaaaaaaaaaa_" + "A" * 43 + "000000", "invalid_api_key"),
    ],
)
def test_a_key_that_opens_nothing_is_refused(front: Instance, key: str, code: str) -> None:
    answer = front.call("/chat/completions", key, {"model": MODEL, "messages": USER})
    assert (answer.status, answer.json()["error"]["code"]) == (401, code)


def test_an_unknown_path_and_a_wrong_method_are_told_what_is_served(front: Instance) -> None:
    unknown = front.call("/nothing", front.key("acme"))
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "unknown_path")
    wrong = front.call("/chat/completions", front.key("acme"))
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


def test_the_gateway_answers_health_and_head_on_its_own_port(instance: Instance) -> None:
    assert request(f"{instance.api_base.removesuffix('/v1')}/health", "").status == 200
    head = request(f"{instance.api_base}/models", instance.key("acme"), method="HEAD")
    assert (head.status, head.text) == (200, "")

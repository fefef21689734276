"""What a request may cost at most, to the pico-dollar, and when a stream must pay for more."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from billing.models import PriceBook, PriceVersion
from billing.pricing.prices import DEMO_RATES, PriceTable
from billing.pricing.rating import Rates
from catalogue.registry import ServedModel
from gateway.admission import cost_estimate
from gateway.admission.cost_estimate import STEP_TOKENS, TEMPLATE_TOKENS, CostReservation
from gateway.errors import Unavailable
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from tenants.ids import RevisionId, TenantId, new_id
from tests.gateway.fixtures import callers

CONTEXT = 4096
MODEL = ServedModel(
    name="m",
    owner_id=TenantId(new_id()),
    owner_slug="acme",
    public=True,
    revision_id=RevisionId(new_id()),
    digest="d",
    context_length_tokens=CONTEXT,
    created_at=0,
)
CHAT, PROMPT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
PICTURED = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]}
#: An engine refuses it, whatever it took it for.
ODD = {"model": "m", "messages": [{"role": "user", "content": [{"type": ["text"], "text": "?"}]}]}


def table(rates: Rates = DEMO_RATES) -> PriceTable:
    """Return a table in which the model has had this price for long."""
    version = PriceVersion(
        book=PriceBook(name="platform"),
        model_name="m",
        effective_from=timezone.now() - timedelta(days=1),
        **asdict(rates),
    )
    return PriceTable([version])


def allowed(body: dict[str, Any], path: str = CHAT, *, rates: Rates = DEMO_RATES) -> tuple[CostReservation | None, int]:
    """Return what a request under a hard budget needs, and the size of its body."""
    raw = orjson.dumps(body)
    call = request_body.parse(ENDPOINTS[path], raw)
    who = callers.caller(callers.budget(1))
    return cost_estimate.cost_reservation(table(rates), who, call, MODEL, len(raw), new_id()), len(raw)


@pytest.mark.parametrize(
    ("body", "path", "prompt", "paid"),
    [
        ({**HELLO, "max_tokens": 10}, CHAT, None, 10),
        ({**HELLO, "max_tokens": 10, "n": 3}, CHAT, None, 30),
        (HELLO, CHAT, None, CONTEXT),
        ({**HELLO, "max_tokens": 10**6}, CHAT, None, CONTEXT),
        ({**HELLO, "stream": True}, CHAT, None, STEP_TOKENS),
        ({**HELLO, "stream": True, "n": 2}, CHAT, None, 2 * STEP_TOKENS),
        ({**HELLO, "stream": True, "max_tokens": 7}, CHAT, None, 7),
        ({**HELLO, "stream": True, "max_tokens": 2000}, MESSAGES, None, 2000),
        ({"model": "m", "input": "a", "stream": True}, RESPONSES, None, CONTEXT),
        ({**HELLO, "max_tokens": 1, "ignored": "x" * CONTEXT}, CHAT, CONTEXT, 1),
        ({**PICTURED, "max_tokens": 1}, CHAT, CONTEXT, 1),
        ({**ODD, "max_tokens": 1}, CHAT, CONTEXT, 1),
        (
            {"model": "m", "input": [{"type": "input_image", "content": "a"}], "max_output_tokens": 1},
            RESPONSES,
            CONTEXT,
            1,
        ),
        ({"model": "m", "input": [{"role": "user", "content": "a"}], "max_output_tokens": 1}, RESPONSES, None, 1),
        ({"model": "m", "prompt": ["a", "b"], "max_tokens": 5}, PROMPT, None, 10),
        ({"model": "m", "prompt": ["a" * CONTEXT, "b" * CONTEXT], "max_tokens": 5}, PROMPT, 2 * CONTEXT, 10),
        ({"model": "m", "input": ["a" * CONTEXT, "b" * CONTEXT]}, EMBED, None, 0),
    ],
)
def test_a_request_holds_the_most_that_it_can_cost(
    body: dict[str, Any], path: str, prompt: int | None, paid: int
) -> None:
    found, size = allowed(body, path)
    assert found is not None
    tokens = size + TEMPLATE_TOKENS if prompt is None else prompt
    assert (found.prompt_tokens, found.paid_tokens) == (tokens, paid)
    assert found.held_pico == tokens * 150_000 + paid * 600_000


def test_a_prompt_is_held_at_the_dearer_of_its_prices() -> None:
    found, size = allowed(
        {**HELLO, "max_tokens": 1}, rates=Rates(prompt_pico=3, cached_prompt_pico=5, completion_pico=0)
    )
    assert found is not None
    assert found.held_pico == 5 * (size + TEMPLATE_TOKENS)


def test_classes_of_their_own_are_held_at_the_dearest_price() -> None:
    rates = replace(DEMO_RATES, cache_write_pico=187_500, reasoning_pico=1_200_000)
    found, size = allowed({**HELLO, "max_tokens": 1}, rates=rates)
    assert found is not None
    assert found.held_pico == (size + TEMPLATE_TOKENS) * 187_500 + 1_200_000


def test_the_price_of_a_request_and_of_its_priority_is_held() -> None:
    rates = replace(DEMO_RATES, request_pico=1_000_000, high_priority_bp=12_500)
    body = orjson.dumps({**HELLO, "max_tokens": 10})
    call = request_body.parse(ENDPOINTS[CHAT], body)
    who = callers.caller(callers.budget(1))
    high = replace(who, policy=replace(who.policy, priority="high"))
    prompt = len(body) + TEMPLATE_TOKENS
    held = []
    for each in (who, high):
        found = cost_estimate.cost_reservation(table(rates), each, call, MODEL, len(body), new_id())
        assert found is not None
        held.append(found.held_pico)
    assert held == [prompt * 150_000 + 10 * 600_000 + 1_000_000, prompt * 187_500 + 10 * 750_000 + 1_250_000]
    cached = cost_estimate.cost_reservation(table(rates), who, call, MODEL, len(body), new_id(), runs=False)
    assert cached is not None and cached.held_pico == 0


def test_no_less_is_held_than_another_requests_answer_costs() -> None:
    rates = Rates(prompt_pico=1, cached_prompt_pico=1, completion_pico=1, prediction_hit_pico=650, coalesced_pico=700)
    found, size = allowed({**HELLO, "stream": True, "max_tokens": 5_000}, rates=rates)
    assert found is not None
    assert (found.hit_pico, found.held_pico) == (650, 700)
    assert found.next_pico(STEP_TOKENS) == size + TEMPLATE_TOKENS + 2 * STEP_TOKENS - 700 == found.held_pico - 700


def test_nothing_is_held_where_no_hard_budget_asks_or_nothing_is_charged() -> None:
    call = request_body.parse(ENDPOINTS[CHAT], orjson.dumps(HELLO))
    for who in (callers.caller(), callers.caller(callers.budget(1, model_name="other"))):
        assert cost_estimate.cost_reservation(PriceTable(()), who, call, MODEL, 9, new_id()) is None
    free, _ = allowed({"model": "m", "prompt": "a"}, "/v1/tokenize")
    assert free is None


def test_a_model_without_a_price_is_not_served_under_a_hard_budget() -> None:
    call = request_body.parse(ENDPOINTS[CHAT], orjson.dumps(HELLO))
    renamed = replace(callers.budget(1, model_name="renamed"), earlier_names=(MODEL.name,))
    for bound in (callers.budget(1), renamed):
        with pytest.raises(Unavailable) as refused:
            cost_estimate.cost_reservation(PriceTable(()), callers.caller(bound), call, MODEL, 9, new_id())
        assert (refused.value.status, refused.value.code) == (503, "price_missing")


@given(most=st.integers(1, 5000), choices=st.integers(1, 4), steps=st.lists(st.integers(1, 40), max_size=400))
def test_a_stream_has_always_paid_for_what_it_passes_on(most: int, choices: int, steps: list[int]) -> None:
    step = STEP_TOKENS * choices
    found = CostReservation(
        rates=DEMO_RATES,
        prompt_tokens=100,
        paid_tokens=min(step, most * choices),
        step_tokens=step,
        most_tokens=most * choices,
    )
    streamed, held = 0, found.held_pico
    for tokens in steps:
        streamed = min(streamed + tokens, most * choices)
        assert streamed <= found.paid_tokens <= most * choices
        held += found.next_pico(streamed)
        assert held == found.held_pico
        left = found.paid_tokens - streamed
        assert left > step // 2 - 1 or found.paid_tokens == most * choices


def test_a_field_that_an_endpoint_does_not_know_lowers_no_hold() -> None:
    plain, _ = allowed({"model": "m", "input": "Hello"}, EMBED)
    odd, _ = allowed({"model": "m", "input": "Hello", "prompt": "x"}, EMBED)
    assert plain is not None
    assert odd is not None
    assert odd.prompt_tokens >= plain.prompt_tokens > 0

"""Charges of requests: exact, by token class and by how they ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.pricing.rating import Charge, Rates, rate

RATES = Rates(
    prompt_pico=150_000,
    cached_prompt_pico=15_000,
    completion_pico=600_000,
    prediction_hit_pico=1_000,
    coalesced_pico=2_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    state: str = "complete"
    cache_result: str = "miss"
    tokens_source: str = "engine"
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    avoided_prompt_tokens: int = 0
    avoided_cached_prompt_tokens: int = 0
    avoided_completion_tokens: int = 0
    ttft_ms: float | None = None


counts = st.integers(min_value=0, max_value=2**31 - 1)
picos = st.integers(min_value=0, max_value=10**9)
rates = st.builds(
    Rates,
    prompt_pico=picos,
    cached_prompt_pico=picos,
    completion_pico=picos,
    prediction_hit_pico=picos,
    coalesced_pico=picos,
    request_pico=st.integers(min_value=0, max_value=10**12),
)
usages = st.builds(
    Usage,
    state=st.sampled_from(["complete", "refused", "client_gone", "engine_error", "interrupted"]),
    cache_result=st.sampled_from(["hit", "miss", "coalesced", "bypass"]),
    tokens_source=st.sampled_from(["engine", "cache", "streamed", "estimated"]),
    prompt_tokens=counts,
    cached_prompt_tokens=counts,
    completion_tokens=counts,
    avoided_prompt_tokens=counts,
    avoided_cached_prompt_tokens=counts,
    avoided_completion_tokens=counts,
    ttft_ms=st.sampled_from([None, 12.5]),
)


@pytest.mark.parametrize(
    ("usage", "charge"),
    [
        (
            Usage(prompt_tokens=30, cached_prompt_tokens=10, completion_tokens=7),
            Charge(amount_pico=4_500_000 + 150_000 + 4_200_000, saved_prefix_pico=1_350_000),
        ),
        (Usage(prompt_tokens=1), Charge(amount_pico=150_000)),
        (Usage(state="client_gone", prompt_tokens=30), Charge(amount_pico=4_500_000)),
        (
            Usage(state="client_gone", prompt_tokens=30, completion_tokens=2),
            Charge(amount_pico=4_500_000 + 1_200_000),
        ),
        (Usage(state="engine_error", prompt_tokens=30, cached_prompt_tokens=10), Charge(amount_pico=0)),
        (
            Usage(state="engine_error", prompt_tokens=30, completion_tokens=2),
            Charge(amount_pico=4_500_000 + 1_200_000),
        ),
        (Usage(state="engine_error", tokens_source="estimated", prompt_tokens=30), Charge(amount_pico=4_500_000)),
        (Usage(state="interrupted", prompt_tokens=30), Charge(amount_pico=0)),
        (Usage(state="interrupted", tokens_source="estimated", prompt_tokens=30), Charge(amount_pico=0)),
        (
            Usage(state="interrupted", prompt_tokens=30, completion_tokens=2),
            Charge(amount_pico=4_500_000 + 1_200_000),
        ),
        (
            Usage(
                cache_result="hit",
                avoided_prompt_tokens=40,
                avoided_cached_prompt_tokens=10,
                avoided_completion_tokens=7,
            ),
            Charge(amount_pico=1_000, saved_prediction_pico=40 * 150_000 + 10 * 15_000 + 7 * 600_000 - 1_000),
        ),
    ],
)
def test_each_cell_of_the_matrix_is_charged_as_documented(usage: Usage, charge: Charge) -> None:
    assert rate(usage, RATES) == charge


@pytest.mark.parametrize(
    ("state", "untold", "told"),
    [
        ("complete", 2_000, 2_000),
        ("client_gone", 0, 2_000),
        ("refused", 0, 2_000),
        ("engine_error", 0, 0),
        ("interrupted", 0, 0),
    ],
)
def test_a_coalesced_answer_costs_its_fixed_price_or_nothing(state: str, untold: int, told: int) -> None:
    before = Usage(
        cache_result="coalesced",
        state=state,
        avoided_prompt_tokens=30,
        avoided_cached_prompt_tokens=10,
        avoided_completion_tokens=7,
    )
    for usage, price in ((before, untold), (replace(before, ttft_ms=12.5), told)):
        saved = 30 * 150_000 + 10 * 15_000 + 7 * 600_000 - price if state == "complete" else 0
        assert rate(usage, RATES) == Charge(amount_pico=price, saved_prediction_pico=saved)


@given(usage=usages, rates=rates)
def test_amounts_are_whole_never_negative_and_fit_their_column(usage: Usage, rates: Rates) -> None:
    charge = rate(usage, rates)
    assert all(type(value) is int for value in (charge.amount_pico, charge.saved_prefix_pico))
    assert 0 <= charge.amount_pico < 2**63
    assert abs(charge.saved_prediction_pico) < 2**63
    assert abs(charge.saved_prefix_pico) < 2**63


@given(usage=usages, rates=rates)
def test_only_one_cache_saves_on_a_request_and_the_saving_closes_the_gap(usage: Usage, rates: Rates) -> None:
    charge = rate(usage, rates)
    if usage.cache_result in {"hit", "coalesced"}:
        full = (
            usage.avoided_prompt_tokens * rates.prompt_pico
            + usage.avoided_cached_prompt_tokens * rates.cached_prompt_pico
            + usage.avoided_completion_tokens * rates.completion_pico
        )
        if usage.avoided_prompt_tokens or usage.avoided_cached_prompt_tokens or usage.avoided_completion_tokens:
            full += rates.request_pico
        assert charge.saved_prefix_pico == 0
        if usage.cache_result == "coalesced" and usage.state != "complete":
            assert charge in {Charge(amount_pico=0), Charge(amount_pico=rates.coalesced_pico)}
            return
        assert charge.amount_pico + charge.saved_prediction_pico == full
        return
    assert charge.saved_prediction_pico == 0
    if usage.completion_tokens or usage.state in {"complete", "refused", "client_gone"}:
        prompt = usage.prompt_tokens + usage.cached_prompt_tokens
        full = prompt * rates.prompt_pico + usage.completion_tokens * rates.completion_pico
        full += rates.request_pico if prompt or usage.completion_tokens else 0
        assert charge.amount_pico + charge.saved_prefix_pico == full
    else:
        assert charge == Charge(amount_pico=0)


@given(usage=usages, rates=rates)
def test_the_price_of_a_sum_is_the_sum_of_the_prices(usage: Usage, rates: Rates) -> None:
    """Classes are disjoint: a request costs the sum of its classes, and its own price once."""
    if usage.cache_result in {"hit", "coalesced"} or not usage.completion_tokens:
        return
    apart = [
        Usage(prompt_tokens=usage.prompt_tokens),
        Usage(cached_prompt_tokens=usage.cached_prompt_tokens),
        Usage(completion_tokens=usage.completion_tokens),
    ]
    own_pico = rate(usage, rates).amount_pico - rates.request_pico
    assert own_pico == sum(rate(part, replace(rates, request_pico=0)).amount_pico for part in apart)


@pytest.mark.parametrize(
    ("state", "refused_at_once", "without_output", "with_output"),
    [
        ("complete", 0, 1, 1),
        ("client_gone", 0, 1, 1),
        ("refused", 0, 1, 1),
        ("engine_error", 0, 0, 1),
        ("interrupted", 0, 0, 1),
    ],
)
def test_a_request_costs_its_price_once_if_a_token_of_it_is_charged(
    state: str, refused_at_once: int, without_output: int, with_output: int
) -> None:
    rates = Rates(prompt_pico=0, cached_prompt_pico=0, completion_pico=0, request_pico=1)
    for tokens, price in (((0, 0, 0), refused_at_once), ((30, 10, 0), without_output), ((30, 10, 7), with_output)):
        prompt, cached, completion = tokens
        usage = Usage(state=state, prompt_tokens=prompt, cached_prompt_tokens=cached, completion_tokens=completion)
        assert rate(usage, rates) == Charge(amount_pico=price)


def test_a_stored_response_does_not_cost_the_price_of_a_request_and_saves_it() -> None:
    rates = replace(RATES, request_pico=5_000)
    hit = Usage(cache_result="hit", avoided_prompt_tokens=40)
    assert rate(hit, rates) == Charge(amount_pico=1_000, saved_prediction_pico=40 * 150_000 + 5_000 - 1_000)


def test_a_priority_multiplies_what_engines_do_and_rounds_each_price_once() -> None:
    rates = replace(RATES, prompt_pico=150_001, request_pico=3, low_priority_bp=5_000, high_priority_bp=15_000)
    low, high = rates.at("low"), rates.at("high")
    # 75,000.5 is rounded half to even, 225,001.5 too.
    assert (low.prompt_pico, high.prompt_pico) == (75_000, 225_002)
    assert (low.cached_prompt_pico, high.completion_pico) == (7_500, 900_000)
    assert (low.request_pico, high.request_pico) == (2, 4)
    assert (low.prediction_hit_pico, high.coalesced_pico) == (1_000, 2_000)
    assert (rates.at("standard"), high.at("high")) == (rates, high)

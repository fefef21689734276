"""Requests that other gateways are known to have priced wrongly, from what an engine reports to the pico-dollar.

Each vector has the amount worked out by hand, and the one that the known error gives. The terms of plans have theirs in
tests/billing/plans/test_calculation.py, files of prices in test_price_file.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_field

from billing.ledger.usage_rows import finished, rated
from billing.pricing.amounts import minor
from billing.pricing.prices import DEMO_RATES
from billing.pricing.rating import Rates, rate
from gateway.protocols.anthropic import messages
from gateway.protocols.endpoint import Usage as Reported
from gateway.protocols.openai import chat, responses
from tenants.ids import RequestId, new_id
from tests.billing.pricing.test_rating import Usage
from tests.billing.wal_records import end, start

Reader = Callable[[Mapping[str, Any]], Reported]
#: $0.15, $0.015 and $0.60 a million: 150,000, 15,000 and 600,000 pico-dollars a token.
CACHED = {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 800}, "completion_tokens": 100}
#: 200 x 150,000 + 800 x 15,000 + 100 x 600,000.
CACHED_PICO = 30_000_000 + 12_000_000 + 60_000_000


def charged(read: Reader, reported: Mapping[str, Any], rates: Rates = DEMO_RATES) -> int:
    """Return what a complete request costs for which an engine reported this usage."""
    tokens = read(reported)
    usage = Usage(
        prompt_tokens=tokens.prompt_tokens,
        cached_prompt_tokens=tokens.cached_prompt_tokens,
        completion_tokens=tokens.completion_tokens,
        cache_write_tokens=tokens.cache_write_tokens,
        reasoning_tokens=tokens.reasoning_tokens,
    )
    return rate(usage, rates).amount_pico


@pytest.mark.parametrize(
    ("read", "reported", "pico", "wrong_pico"),
    [
        # 0.15 as the price of one token would be 150,000 dollars.
        pytest.param(
            chat.usage_of,
            {"prompt_tokens": 10**6, "completion_tokens": 0},
            150_000_000_000,
            150_000 * 10**12,
            id="a price per million taken for one per token",
        ),
        # 1,000 x 150,000 + 800 x 15,000 + 100 x 600,000.
        pytest.param(chat.usage_of, CACHED, CACHED_PICO, 222_000_000, id="cached tokens charged twice"),
        pytest.param(
            responses.usage_of,
            {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 100},
            CACHED_PICO,
            222_000_000,
            id="cached tokens charged twice, responses",
        ),
        # 1,000 x 150,000 + 100 x 600,000.
        pytest.param(chat.usage_of, CACHED, CACHED_PICO, 210_000_000, id="cached tokens at the price of uncached ones"),
        # (200 + 800) x 150,000 + 800 x 15,000 + 100 x 600,000.
        pytest.param(
            messages.usage_of,
            {"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 100},
            CACHED_PICO,
            222_000_000,
            id="cached tokens added to the input, too",
        ),
        # 1,000 x 15,000: no price of what was cached would make the whole request free.
        pytest.param(
            messages.usage_of,
            {"input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 0},
            15_000_000,
            0,
            id="a prompt that was cached whole for nothing",
        ),
        # Anthropic's input excludes what was read from the cache: 200 - 800 tokens would earn money.
        pytest.param(
            messages.usage_of,
            {"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 100},
            CACHED_PICO,
            (200 - 800) * 150_000 + 12_000_000 + 60_000_000,
            id="cached tokens subtracted where they are not included",
        ),
        # 10 x 150,000 + 100 x 600,000; 70 more at 600,000 would be the reasoning once again.
        pytest.param(
            chat.usage_of,
            {
                "prompt_tokens": 10,
                "completion_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 70},
            },
            61_500_000,
            103_500_000,
            id="reasoning added on top of the completion",
        ),
        # In units of 1/500,000 dollar, which are 2,000,000 pico-dollars, one token costs at least one unit.
        pytest.param(
            chat.usage_of, {"prompt_tokens": 1, "completion_tokens": 0}, 150_000, 2_000_000, id="a minimum of one unit"
        ),
        # 133 cached tokens are 1,995,000: in such units, rounded down, nothing.
        pytest.param(
            chat.usage_of,
            {"prompt_tokens": 133, "prompt_tokens_details": {"cached_tokens": 133}, "completion_tokens": 0},
            1_995_000,
            0,
            id="cached tokens for nothing",
        ),
        # Without details nothing is cached.
        pytest.param(
            chat.usage_of,
            {"prompt_tokens": 1000, "prompt_tokens_details": None, "completion_tokens": 100},
            210_000_000,
            CACHED_PICO,
            id="no details",
        ),
        # More cached tokens than prompt tokens is an error of the engine: all are cached, none below zero.
        pytest.param(
            chat.usage_of,
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens": 0},
            150_000,
            -900_000 + 240_000,
            id="more cached than there are",
        ),
    ],
)
def test_a_request_is_priced_right(read: Reader, reported: Mapping[str, Any], pico: int, wrong_pico: int) -> None:
    assert charged(read, reported) == pico != wrong_pico


@pytest.mark.parametrize(
    ("read", "reported", "prompt", "output"),
    [
        (chat.usage_of, CACHED, 1000, 100),
        (chat.usage_of, {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 16}}, 10, 0),
        (messages.usage_of, {"input_tokens": 200, "cache_read_input_tokens": 800, "output_tokens": 100}, 1000, 100),
        (
            messages.usage_of,
            {"input_tokens": 8, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 192, "output_tokens": 9},
            1000,
            9,
        ),
        (
            responses.usage_of,
            {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 100},
            1000,
            100,
        ),
    ],
)
def test_the_classes_sum_to_what_the_engine_read_and_wrote(
    read: Reader, reported: Mapping[str, Any], prompt: int, output: int
) -> None:
    tokens = read(reported)
    assert tokens.prompt_tokens + tokens.cached_prompt_tokens == prompt
    assert tokens.completion_tokens == output
    assert 0 <= tokens.cache_write_tokens <= tokens.prompt_tokens
    assert 0 <= tokens.reasoning_tokens <= tokens.completion_tokens


def test_a_price_of_a_request_is_charged_once_and_never_without_a_token() -> None:
    rates = replace(DEMO_RATES, request_pico=1_000_000)
    # Three choices of 100 tokens are one request: not 3,000,000.
    assert charged(chat.usage_of, {"prompt_tokens": 10, "completion_tokens": 300}, rates) == 182_500_000
    assert charged(chat.usage_of, {"prompt_tokens": 0, "completion_tokens": 0}, rates) == 0


def test_a_model_without_a_price_is_unrated_and_not_free() -> None:
    request_id = RequestId(new_id())
    row = finished(start(request_id), end(request_id))
    assert rated(row, None).amount_pico is None
    assert rated(replace_field(row, refusals=1), None).amount_pico == 0


#: 1.25 times the prompt's price for what is written, as Anthropic has it, and twice the completion's for reasoning.
CLASSED = replace(DEMO_RATES, cache_write_pico=187_500, reasoning_pico=1_200_000)
WRITTEN = {
    "prompt_tokens": 1000,
    "prompt_tokens_details": {"cached_tokens": 800, "created_cache_tokens": 192},
    "completion_tokens": 100,
    "completion_tokens_details": {"reasoning_tokens": 70},
}
#: 8 x 150,000 + 192 x 187,500 + 800 x 15,000 + 30 x 600,000 + 70 x 1,200,000.
WRITTEN_PICO = 1_200_000 + 36_000_000 + 12_000_000 + 18_000_000 + 84_000_000


@pytest.mark.parametrize(
    ("read", "reported", "pico", "wrong_pico"),
    [
        pytest.param(
            chat.usage_of, WRITTEN, WRITTEN_PICO, WRITTEN_PICO + 192 * 150_000, id="written tokens as new ones, too"
        ),
        pytest.param(
            responses.usage_of,
            {
                "input_tokens": 1000,
                "input_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 192},
                "output_tokens": 100,
                "output_tokens_details": {"reasoning_tokens": 70},
            },
            WRITTEN_PICO,
            WRITTEN_PICO + 70 * 600_000,
            id="reasoning as completion, too",
        ),
        # Anthropic's input excludes what was written: 8 + 800 + 192 are the prompt.
        pytest.param(
            messages.usage_of,
            {
                "input_tokens": 8,
                "cache_read_input_tokens": 800,
                "cache_creation_input_tokens": 192,
                "output_tokens": 100,
            },
            WRITTEN_PICO - 70 * 600_000,
            (8 - 192) * 150_000 + 36_000_000 + 12_000_000 + 60_000_000,
            id="written tokens subtracted where they are not included",
        ),
        # More than there are is an error of the engine, or the parts of one prompt of several: no class is below zero.
        pytest.param(
            chat.usage_of,
            {
                "prompt_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 16},
                "completion_tokens": 5,
                "completion_tokens_details": {"reasoning_tokens": 9},
            },
            6 * 187_500 + 4 * 15_000 + 5 * 1_200_000,
            -10 * 150_000 + 16 * 187_500 + 4 * 15_000 - 4 * 600_000 + 9 * 1_200_000,
            id="more parts than the whole",
        ),
    ],
)
def test_classes_with_a_price_of_their_own_are_priced_right(
    read: Reader, reported: Mapping[str, Any], pico: int, wrong_pico: int
) -> None:
    assert charged(read, reported, CLASSED) == pico != wrong_pico


def test_without_a_price_of_its_own_a_class_costs_what_its_parent_costs() -> None:
    assert charged(chat.usage_of, WRITTEN) == CACHED_PICO


def test_many_small_requests_are_rounded_once_and_not_each() -> None:
    # 10 x 150,000 + 1 x 600,000 are $0.0000021. Each to the cent would be nothing, or $100 if rounded up.
    one = charged(chat.usage_of, {"prompt_tokens": 10, "completion_tokens": 1})
    assert one == 2_100_000
    assert (minor(10_000 * one, "USD"), 10_000 * minor(one, "USD")) == (2, 0)


def test_a_price_of_nothing_is_nothing() -> None:
    hit = Usage(cache_result="hit", avoided_prompt_tokens=1000, avoided_completion_tokens=100)
    assert rate(hit, DEMO_RATES).amount_pico == 0
    assert rate(Usage(state="engine_error", prompt_tokens=1000), DEMO_RATES).amount_pico == 0

"""A hard budget on real engines: what it refuses, how it ends a stream, and that the ledger never exceeds it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from gateway.admission.cost_estimate import STEP_TOKENS
from tests.journey.customers import Customer, customer
from tests.journey.instance import Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

COMPLETION_PICO = 600_000
#: Room for the prompt and three steps of a stream.
LIMIT_PICO = 600_000_000
STREAM_TOKENS = 4000
MOST_REQUESTS = 100


def put(buyer: Customer, limit_pico: int) -> None:
    """Let the tenant spend so much in all."""
    terms = {"period": "total", "limit_pico": limit_pico}
    answer = buyer.instance.operator(buyer.path("/budgets"), terms, method="PUT")
    assert answer.status in {200, 201}, answer


def standing(buyer: Customer) -> dict[str, Any]:
    """Return how the tenant's budget stands."""
    (budget,) = buyer.instance.operator(buyer.path("/budgets")).json()["data"]
    return dict(budget)


def settled(buyer: Customer) -> dict[str, Any] | None:
    """Return how it stands once nothing is held of it and something is spent."""
    now = standing(buyer)
    return now if now["held_pico"] == 0 and now["spent_pico"] else None


@pytest.fixture(name="buyer")
def _buyer(instance: Instance) -> Customer:
    """Return a tenant that may spend LIMIT_PICO in all, and has begun to.

    Until the gateway hears of its budget a second later, it has none: the limit of nought shows when.
    """
    found = customer(instance, "buyer")
    put(found, 0)
    wait_for(lambda: found.ask().status == 429, "a refusal", seconds=60)
    put(found, LIMIT_PICO)
    wait_for(lambda: found.ask().status == 200, "an answer within the new limit", seconds=60)
    return found


def test_a_stream_ends_when_its_budget_does_and_the_ledger_stays_below(buyer: Customer) -> None:
    with pytest.raises(openai.APIError) as ended, buyer.stream(STREAM_TOKENS) as stream:
        for _ in stream:
            pass
    assert ended.value.code == "budget_exceeded"
    after = wait_for(lambda: settled(buyer), "what the stream cost", seconds=60)
    assert STEP_TOKENS * COMPLETION_PICO < after["spent_pico"] <= LIMIT_PICO
    assert after["left_pico"] == LIMIT_PICO - after["spent_pico"]

    refused = next((answer for answer in (buyer.ask() for _ in range(MOST_REQUESTS)) if answer.status != 200), None)
    assert refused is not None, "what was left holds no more than so many requests"
    assert (refused.status, refused.json()["error"]["code"]) == (429, "budget_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    end = wait_for(lambda: settled(buyer), "what all of them cost", seconds=60)
    total = buyer.instance.operator(f"/usage/totals?tenant={buyer.slug}").json()["total"]
    assert int(total["amount_pico"]) == end["spent_pico"] <= LIMIT_PICO
    assert end["left_pico"] == LIMIT_PICO - end["spent_pico"]

"""A hundred identical streams at once: real vLLM runs one, all get its bytes, and each is billed as what it was."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from tests.journey.customers import Customer, customer
from tests.journey.instance import MODEL, Instance, request, wait_for
from tests.journey.load import client

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

CLIENTS = 100
#: So many that the last client has come long before the answer ends.
TOKENS = 600
PROMPT_PICO, CACHED_PICO, COMPLETION_PICO, COALESCED_PICO = 150_000, 15_000, 600_000, 7_000


@dataclass(frozen=True, slots=True)
class Heard:
    """What one client got. ``body`` is without the comments of heartbeats."""

    headers: dict[str, str]
    body: str

    @property
    def events(self) -> list[Any]:
        """The chunks of the answer."""
        *told, last, rest = self.body.split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in told]


async def crowd(buyer: Customer) -> list[Heard]:
    """Send the same stream from all clients at once."""
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{uuid4()} Tell me of generators."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {buyer.secret}"}
    async with client() as session:

        async def one() -> Heard:
            url = f"{buyer.instance.api_base}/chat/completions"
            async with session.post(url, json=asked, headers=headers) as response:
                assert response.status == 200, await response.text()
                told = (await response.text()).split("\n\n")
                body = "\n\n".join(event for event in told if not event.startswith(":"))
                return Heard({name.lower(): value for name, value in response.headers.items()}, body)

        return await asyncio.gather(*[one() for _ in range(CLIENTS)])


def billed(buyer: Customer) -> dict[str, dict[str, str]] | None:
    """Return the tenant's usage rows by request, once all are there."""
    export = request(f"{buyer.instance.management}/usage?format=csv", buyer.secret)
    assert export.status == 200, export
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(export.text))}
    return rows if len(rows) == CLIENTS else None


def written(instance: Instance) -> float:
    """Return the tokens that the engines have written."""
    return sum(engine.counter("vllm:generation_tokens_total") for engine in instance.engines())


def pico(money: str) -> int:
    """Return an amount of the export in pico-units of its currency."""
    return int(Decimal(money).scaleb(12))


@pytest.mark.timeout(300)
def test_a_hundred_identical_streams_are_one_run_of_the_engine(instance: Instance) -> None:
    buyer = customer(instance, "crowd")
    price = {
        "model": MODEL,
        "tenant": buyer.slug,
        "prompt_pico": PROMPT_PICO,
        "cached_prompt_pico": CACHED_PICO,
        "completion_pico": COMPLETION_PICO,
        "coalesced_pico": COALESCED_PICO,
        "confirm": True,
    }
    assert instance.operator("/prices", price).status == 201
    wait_for(lambda: instance.call("/models", buyer.secret).status == 200, "a gateway that knows the key", seconds=60)
    before = written(instance)

    heard = asyncio.run(crowd(buyer))

    wait_for(lambda: written(instance) - before >= TOKENS, "the answer's tokens")
    assert (written(instance) - before) // TOKENS == 1  # beside the few of canaries
    assert sorted(each.headers["x-cache"] for each in heard) == ["coalesced"] * (CLIENTS - 1) + ["miss"]
    assert len({each.body for each in heard}) == 1
    (led,) = (each for each in heard if each.headers["x-cache"] == "miss")
    source = led.headers["x-request-id"]
    assert {event["id"] for event in led.events} == {f"chatcmpl-{source}"}
    assert len({each.headers["x-request-id"] for each in heard}) == CLIENTS
    assert {each.headers.get("x-source-id") for each in heard if each is not led} == {source}

    rows = wait_for(lambda: billed(buyer), "a usage row of every client", seconds=60)
    assert set(rows) == {each.headers["x-request-id"] for each in heard}
    first = rows.pop(source)
    took = [int(first[f"{kind}_tokens"]) for kind in ("prompt", "cached_prompt", "completion")]
    cost = took[0] * PROMPT_PICO + took[1] * CACHED_PICO + took[2] * COMPLETION_PICO
    assert (first["cache_result"], took[2], pico(first["billed"])) == ("miss", TOKENS, cost)
    for row in rows.values():
        assert (row["cache_result"], row["source_id"], row["completion_tokens"]) == ("coalesced", source, "0")
        assert [int(row[f"avoided_{kind}_tokens"]) for kind in ("prompt", "cached_prompt", "completion")] == took
        assert pico(row["billed"]) == COALESCED_PICO
        assert pico(row["saved_by_prediction"]) == cost - COALESCED_PICO

"""What an answer says it costs is what its usage row is charged, to the pico-dollar, and by that price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from billing.drain.drain import Drain
from billing.models import UsageRecord
from billing.pricing import prices
from billing.pricing.rating import Rates
from tenants.audit import SYSTEM
from tests.gateway.fixtures.protocol_replies import every_protocol
from tests.gateway.fixtures.tenants import HELLO, MODEL, STREAMED, Gateway, in_database, until

RATES = Rates(
    prompt_pico=150_001,
    cached_prompt_pico=15_003,
    completion_pico=600_007,
    prediction_hit_pico=11,
    request_pico=1_000_001,
    high_priority_bp=15_000,
)
#: 8 uncached and 4 cached prompt tokens and 3 written at 225,002, 22,504 and 900,010, and a request at 1,500,002.
COST = "0.000006090064"
#: The same, less the price of a hit.
SAVED = "0.000006090053"
EMBED: dict[str, Any] = {"model": MODEL, "input": "Hello"}
MESSAGE: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": HELLO["messages"], "temperature": 0}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "Hello"}
COUNT: dict[str, Any] = {"model": MODEL, "messages": HELLO["messages"]}


@pytest.fixture
def emptied_usage(committed: None) -> Iterator[None]:
    """Leave no usage behind, which Django's flush does."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")


def charged(gateway: Gateway) -> dict[str, tuple[int | None, str]]:
    """Store what the log holds, and return what each request is charged by which price."""
    drain = Drain(gateway.wal, "here")
    try:
        while drain.step():
            pass
    finally:
        drain.close()
    return {str(row.id): (row.amount_pico, str(row.price_version_id)) for row in UsageRecord.objects.all()}


@pytest.mark.usefixtures("emptied_usage")
async def test_an_answer_tells_what_its_row_is_charged(gateway: Gateway) -> None:
    unpriced = await gateway.ask({**HELLO, "seed": 1})
    assert not {"x-cost-usd", "x-price-version"} & set(unpriced.answer_headers)
    before = gateway.runtime.feed.snapshot.prices
    await in_database(lambda: prices.set_price(SYSTEM, prices.ensure_price_book(), MODEL, RATES))
    await until(lambda: gateway.runtime.feed.snapshot.prices is not before)
    await gateway.set_policy(priority="high")
    chat = [await gateway.ask(body) for body in (HELLO, HELLO, STREAMED)]
    gateway.let_all_say(every_protocol)
    embeddings = await gateway.ask(EMBED, path="/v1/embeddings")
    message = await gateway.ask(MESSAGE, path="/v1/messages")
    response = await gateway.ask(RESPONSE, path="/v1/responses")
    priced = [*chat, embeddings, message, response]
    assert [got.answer_headers.get("x-saved-usd") for got in priced] == [None, SAVED, SAVED, None, None, None]
    assert [got.answer_headers["x-cost-usd"] for got in priced] == [
        COST,
        "0.000000000011",
        "0.000000000011",
        "0.000004200026",
        COST,
        COST,
    ]
    rows = await in_database(lambda: charged(gateway))
    for got in priced:
        told = got.answer_headers
        amount = int(told["x-cost-usd"].replace(".", ""))
        assert rows[told["x-request-id"]] == (amount, told["x-price-version"])
    silent = [
        await gateway.ask({**MESSAGE, "max_tokens": 4, "stream": True}, path="/v1/messages"),
        await gateway.ask(COUNT, path="/v1/messages/count_tokens"),
        await gateway.ask({**HELLO, "model": "nobody"}),
    ]
    assert not any("x-cost-usd" in got.answer_headers for got in silent)

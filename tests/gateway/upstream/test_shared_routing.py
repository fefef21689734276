"""Gateway processes of one host send a prompt where any of them has sent its beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.scripted_app import ScriptedEngine
from tests.gateway.fixtures.tenants import HELLO, Gateway

pytestmark = [pytest.mark.django_db(transaction=True)]

BEGINNING = {"role": "user", "content": "what keeps a room warm " * 400}


async def test_a_prompt_follows_what_another_process_sent(
    gateway: Gateway, engines: tuple[ScriptedEngine, ScriptedEngine], tmp_path: Path
) -> None:
    async with tenants.raw_door(gateway.world, engines, tmp_path / "wal") as second:
        found = []
        for number in range(6):
            body = {**HELLO, "messages": [BEGINNING, {"role": "user", "content": str(number)}]}
            exchange = await (gateway, second)[number % 2].ask(body)
            found.append((exchange.answer_headers["x-route"].partition(";")[0], exchange.answer_headers["x-replica"]))
    (_, home), *later = found
    assert later == [("prefix", home)] * 5

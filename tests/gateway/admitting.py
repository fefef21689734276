"""A gateway process that does nothing but admit, for tests that need several or kill one.

Reads one JSON line: Redis, the caller's tenant, budgets and limits by id and figure, how many to admit at once and what
each holds. Says how many were admitted, and keeps them open until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import UUID

import django

django.setup()

from gateway.admission import Ticket  # noqa: E402
from tests.gateway.doors import Doors, budget, caller, demand, line, tried  # noqa: E402


async def admit(asked: dict[str, Any]) -> None:
    """Admit all at once, say how many were, and wait."""
    budgets = [budget(0, id=UUID(each)) for each in asked["budgets"]]
    limits = [line(id=UUID(each), concurrent_requests=asked["concurrent_requests"]) for each in asked["limits"]]
    who = caller(*budgets, *limits, tenant=UUID(asked["tenant"]))
    async with Doors() as doors:
        gate = doors(asked["url"], lease_seconds=asked["lease_seconds"])
        demands = [demand(who, hold_pico=asked["hold_pico"]) for _ in range(asked["requests"])]
        answers = await asyncio.gather(*[tried(gate, each) for each in demands])
        print(sum(isinstance(answer, Ticket) for answer in answers), flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(admit(json.loads(sys.stdin.readline())))

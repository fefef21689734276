"""Requests that share prefixes, sent when they are due whatever the answers to those before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.calibration.costs import Costs, drawn
from benchmarks.calibration.engines import Answer, Engine

PREFIXES = 24
PREFIX_TOKENS = (100, 500)
TAIL_TOKENS = (30, 500)
ANSWER_TOKENS = (4, 32)
#: Share of the time that the requests would take one after another.
LOAD = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, due ``at`` seconds after the beginning."""

    at: float
    prompt: Sequence[int]
    answer_tokens: int


def draw(random: Random, costs: Costs, count: int) -> list[Request]:
    """Return requests whose arrivals are a Poisson process at LOAD of an engine with these costs."""
    prefixes = [drawn(random, random.randint(*PREFIX_TOKENS)) for _ in range(PREFIXES)]
    prompts = [(*random.choice(prefixes), *drawn(random, random.randint(*TAIL_TOKENS))) for _ in range(count)]
    answers = [random.randint(*ANSWER_TOKENS) for _ in range(count)]
    alone = [
        costs.prefill(len(prompt)) + (costs.fixed + costs.decode) * (tokens - 1)
        for prompt, tokens in zip(prompts, answers, strict=True)
    ]
    gap = sum(alone) / count / LOAD
    at = 0.0
    requests = []
    for prompt, tokens in zip(prompts, answers, strict=True):
        at += random.expovariate(1 / gap)
        requests.append(Request(at=at, prompt=prompt, answer_tokens=tokens))
    return requests


async def replay(engine: Engine, requests: Sequence[Request]) -> list[Answer]:
    """Send the requests to an engine with an empty cache; return their answers in the same order."""
    await engine.forget()
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def send(request: Request) -> Answer:
        await asyncio.sleep(began + request.at - loop.time())
        return await engine.ask(request.prompt, request.answer_tokens)

    return await asyncio.gather(*(send(request) for request in requests))

"""One cell of the table: one workload through one router, before engines with empty caches."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.errors import NotRun, Unfit
from benchmarks.gateway.load import ask
from benchmarks.routing import measures
from benchmarks.routing.measures import Measures
from benchmarks.routing.simulator import Request
from benchmarks.routing.workload import Workload
from benchmarks.routing_live.engines import Engine
from benchmarks.routing_live.load import Exchange, Player
from benchmarks.routing_live.stage import Contender, Stage, Up

#: How often the engines are asked which requests they have.
LOOK_SECONDS = 3.0
#: From a router's first answer until it is connected with all that it uses.
SETTLE_SECONDS = 3.0
IDLE_TIMEOUT_SECONDS = 30.0
#: A run says little of the router if requests were sent later than this, or if the machine was as busy as this.
LATE_SECONDS = 0.05
BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one engine did."""

    computed_prompt_tokens: int
    busy_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run took of the machine. ``machine_busy``: share of all cores that was in use, by whatever."""

    machine_busy: float
    router_cpu_seconds: float
    #: How many cores the router, the engines and the load generator used together.
    own_cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed, and how far it can be trusted."""

    measures: Measures
    ideal_hit: float
    #: In how many seconds how many requests were sent.
    seconds: float
    requests: int
    #: Problem → requests without a right answer.
    failed: dict[str, int]
    #: How much later than it was due the load generator sent the 99th of a hundred requests.
    late_p99_seconds: float
    spent: Spent

    @property
    def router_cpu_ms(self) -> float:
        """Return the router's processor time for each request."""
        return self.spent.router_cpu_seconds / self.requests * 1000

    @property
    def is_limited(self) -> bool:
        """Return whether the load generator or the machine may have been the limit."""
        return self.late_p99_seconds > LATE_SECONDS or self.spent.machine_busy > BUSY_SHARE


def run(stage: Stage, contender: Contender, workload: Workload, seconds: float) -> Outcome:
    """Start the router, empty the caches, play the workload, and end the router. Raises NotRun."""
    up = contender.launch(stage)
    try:
        for running in up.running:
            running.wait_until(lambda: ask(up.address, prompt="Are you there?") is not None)
        time.sleep(SETTLE_SECONDS)
        _empty_caches(stage.engines)
        return asyncio.run(_play(stage.engines, up, workload, seconds))
    finally:
        up.end()


async def _play(engines: Sequence[Engine], up: Up, workload: Workload, seconds: float) -> Outcome:
    begin, router_before, others_before = time.monotonic(), up.cpu_seconds(), _cpu_seconds(engines)
    psutil.cpu_percent()
    seen: dict[str, int] = {}
    watching = asyncio.create_task(_watch(engines, seen))
    try:
        exchanges = await Player(up.address, workload, seconds).play()
    finally:
        watching.cancel()
    router = up.cpu_seconds() - router_before
    spent = Spent(
        machine_busy=psutil.cpu_percent() / 100,
        router_cpu_seconds=router,
        own_cores=(router + _cpu_seconds(engines) - others_before) / (time.monotonic() - begin),
    )
    await asyncio.to_thread(_look, engines, seen)
    if not exchanges:
        raise NotRun("no request was due in this time")
    return outcome_of(exchanges, seen, workload, len(engines), seconds, spent)


def _cpu_seconds(engines: Sequence[Engine]) -> float:
    """Return the processor time of the engines and of this process."""
    own = psutil.Process().cpu_times()
    return own.user + own.system + sum(engine.running.cpu_seconds() for engine in engines)


async def _watch(engines: Sequence[Engine], seen: dict[str, int]) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(Unfit):  # the look at the end finds out what is wrong
            await asyncio.to_thread(_look, engines, seen)


def _look(engines: Sequence[Engine], seen: dict[str, int]) -> None:
    """Note which engine has which answers: routers do not say where they sent a request."""
    for number, engine in enumerate(engines):
        seen.update((_bare(each["id"]), number) for each in engine.requests())


def _bare(name: str) -> str:
    """Return an answer's name without its prefix, which differs between chats and completions."""
    return name.partition("-")[2] or name


def outcome_of(
    exchanges: Sequence[Exchange],
    seen: dict[str, int],
    workload: Workload,
    engines: int,
    seconds: float,
    spent: Spent,
) -> Outcome:
    """Return what the exchanges show. ``seen``: the engine's name of an answer → the number of the engine."""
    requests: list[Request] = []
    failed: dict[str, int] = {}
    for exchange in exchanges:
        if not exchange.problem and _bare(exchange.id) not in seen:
            raise NotRun("one of its answers is of no engine", f"its id is {exchange.id}")
        requests.append(_request(exchange, seen))
        if exchange.problem:
            failed[exchange.problem] = failed.get(exchange.problem, 0) + 1
    late = sorted(exchange.sent_at - exchange.due for exchange in exchanges)
    return Outcome(
        measures=measures.measure(requests, _works(requests, workload, engines)),
        ideal_hit=measures.ideal_hit(requests, workload.block_size),
        seconds=seconds,
        requests=len(exchanges),
        failed=failed,
        late_p99_seconds=measures.percentile(late, 99),
        spent=spent,
    )


def _request(exchange: Exchange, seen: dict[str, int]) -> Request:
    """Return the exchange as the measures see it; one that failed never had a first token."""
    failed = bool(exchange.problem)
    return Request(
        turn=exchange.turn,
        conversation=exchange.conversation,
        number=exchange.number,
        sent_at=exchange.sent_at,
        replica=-1 if failed else seen[_bare(exchange.id)],
        first_token_at=math.inf if failed or exchange.first_token_at is None else exchange.first_token_at,
        ended_at=exchange.ended_at or exchange.sent_at,
        cached_tokens=exchange.cached_tokens,
    )


def _works(requests: Sequence[Request], workload: Workload, engines: int) -> list[Work]:
    computed = [0] * engines
    for request in requests:
        if request.replica >= 0:
            computed[request.replica] += request.turn.prompt_tokens - request.cached_tokens
    return [Work(computed_prompt_tokens=each, busy_seconds=each / workload.tokens_per_second) for each in computed]


def _empty_caches(engines: Sequence[Engine]) -> None:
    deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
    for engine in engines:
        while not engine.is_idle():
            if time.monotonic() > deadline:
                raise Unfit("An engine still runs requests of the router before.")
            time.sleep(0.1)
        engine.empty_cache()


def mean(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the mean of rounds, and the worst of the figures that say how reliable they are."""
    failed: dict[str, int] = {}
    for problem, count in itertools.chain.from_iterable(each.failed.items() for each in outcomes):
        failed[problem] = failed.get(problem, 0) + count
    return Outcome(
        measures=measures.mean([each.measures for each in outcomes]),
        ideal_hit=sum(each.ideal_hit for each in outcomes) / len(outcomes),
        seconds=outcomes[0].seconds,
        requests=sum(each.requests for each in outcomes),
        failed=failed,
        late_p99_seconds=max(each.late_p99_seconds for each in outcomes),
        spent=Spent(
            machine_busy=max(each.spent.machine_busy for each in outcomes),
            router_cpu_seconds=sum(each.spent.router_cpu_seconds for each in outcomes),
            own_cores=max(each.spent.own_cores for each in outcomes),
        ),
    )

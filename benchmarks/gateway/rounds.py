"""Throughput in a closed loop: contenders in turn, several times over, so that what disturbs one disturbs all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.gateway import upstream
from benchmarks.gateway.closed_loop import Load, Outcome, generate
from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.lineup import Lineup
from benchmarks.gateway.load import STREAM, Traffic, new_run
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.site import Site

WARM_UP_CONNECTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement. ``cpu_seconds``: of the contender; ``upstream_requests``: that reached the mock meanwhile."""

    outcome: Outcome
    cpu_seconds: float
    upstream_requests: int

    @property
    def rps(self) -> float:
        return (self.outcome.requests - self.outcome.bad_status) / self.outcome.seconds

    @property
    def core_share(self) -> float:
        return self.cpu_seconds / self.outcome.seconds

    @property
    def cpu_us_per_request(self) -> float:
        return self.cpu_seconds * 1e6 / max(1, self.outcome.requests)

    @property
    def failures(self) -> int:
        """How many answers were errors and how many connections broke."""
        return self.outcome.bad_status + self.outcome.broken

    @property
    def upstream_share(self) -> float:
        """Share of the requests that reached the mock upstream."""
        return self.upstream_requests / max(1, self.outcome.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over all rounds."""

    median: float
    low: float
    high: float


#: What is sent, and on how many connections.
Shot = tuple[Traffic, int]


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured of one contender. ``memory_bytes``: after the last round; None for no gateway."""

    contender: Contender
    samples: dict[Shot, list[Sample]] = field(default_factory=dict)
    memory_bytes: int | None = None
    warm_up_requests: int = 0

    def over_rounds(self, traffic: Traffic, connections: int, figure: Callable[[Sample], float]) -> Spread | None:
        """Return a figure of this measurement over all rounds; None when it was not made."""
        values = [figure(sample) for sample in self.samples.get((traffic, connections), ())]
        if not values:
            return None
        return Spread(median=statistics.median(values), low=min(values), high=max(values))

    def median(self, traffic: Traffic, connections: int, figure: Callable[[Sample], float]) -> float | None:
        """Return its median alone."""
        spread = self.over_rounds(traffic, connections, figure)
        return None if spread is None else spread.median

    def rps(self, traffic: Traffic, connections: int) -> float | None:
        """Return the median of the requests answered per second."""
        return self.median(traffic, connections, lambda sample: sample.rps)

    def capacity(self, traffic: Traffic) -> float:
        """Return the highest rate of such requests, whatever the connections; 0 when none was measured."""
        return max((self.rps(*shot) or 0.0 for shot in self.samples if shot[0] == traffic), default=0.0)

    def requests(self) -> int:
        """Return how many requests were answered in all, warm-up included."""
        return self.warm_up_requests + sum(
            sample.outcome.requests for samples in self.samples.values() for sample in samples
        )

    def failures(self) -> int:
        """Return how many requests failed."""
        return sum(sample.failures for samples in self.samples.values() for sample in samples)


def measure(lineup: Lineup, plan: Plan) -> dict[str, Figures]:
    """Run all rounds, with bodies of 1 KB; the order turns by one each time. Returns the figures by name."""
    found = {contender.name: Figures(contender=contender) for contender, _ in lineup.ready}
    repeated_run = new_run()

    def take(contender: Contender, up: Up) -> None:
        figures = found[contender.name]
        for traffic in contender.traffics:
            window = plan.seconds * (plan.stream_windows if traffic == STREAM else 1)
            run = repeated_run if traffic.repeats else ""
            _warm_up(lineup.site, up, figures, traffic, plan, run)
            for connections in (plan.stream_connections,) if traffic.streamed else plan.connections:
                _measure(lineup.site, up, figures, (traffic, connections), window, run)
        if up.running:
            figures.memory_bytes = up.memory_bytes()

    for number in range(plan.rounds):
        lineup.take_turns(f"Round {number + 1} of {plan.rounds}", take, first=number)
    return found


def measure_larger(lineup: Lineup, found: Mapping[str, Figures], plan: Plan) -> None:
    """Add samples of larger bodies to the figures."""

    def take(contender: Contender, up: Up) -> None:
        figures = found[contender.name]
        for size in plan.larger_bodies:
            for small in contender.traffics:
                traffic = Traffic(small.workload, size)
                run = new_run()
                if traffic.repeats:
                    _warm_up(lineup.site, up, figures, traffic, plan, run)
                shot = (traffic, plan.larger_connections)
                _measure(lineup.site, up, figures, shot, plan.larger_seconds, run if traffic.repeats else "")

    lineup.take_turns("Larger bodies", take)


def sample(site: Site, up: Up, load: Load) -> Sample:
    """Take one measurement. Raises NotRun."""
    asked, spent = upstream.answered(site), up.cpu_seconds()
    outcome = generate(site.folder, up.address, load)
    return Sample(
        outcome=outcome,
        cpu_seconds=up.cpu_seconds() - spent,
        upstream_requests=upstream.answered(site) - asked,
    )


def _warm_up(site: Site, up: Up, figures: Figures, traffic: Traffic, plan: Plan, run: str) -> None:
    seconds = max(1, plan.warm_up_seconds) if traffic.repeats else plan.warm_up_seconds
    if not seconds:
        return
    load = Load(traffic=traffic, connections=WARM_UP_CONNECTIONS, seconds=seconds, run=run or new_run())
    figures.warm_up_requests += generate(site.folder, up.address, load).requests


def _measure(site: Site, up: Up, figures: Figures, shot: Shot, seconds: int, run: str) -> None:
    """Take one sample. An empty ``run``: new prompts each time."""
    traffic, connections = shot
    load = Load(traffic=traffic, connections=connections, seconds=seconds, run=run or new_run())
    figures.samples.setdefault(shot, []).append(sample(site, up, load))

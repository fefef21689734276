"""Measure contenders in turn, several times over, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.errors import NotRun
from benchmarks.gateway import upstream
from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.load import Load, Outcome, Workload, generate
from benchmarks.gateway.site import Site

CONNECTIONS: dict[Workload, tuple[int, ...]] = {"new": (1, 16, 64), "repeated": (1, 16, 64), "stream": (16,)}
#: A slow contender needs seconds for sixteen streams at once: a short window would end before the first is whole.
STREAM_WINDOWS = 2
WARM_UP_SECONDS = 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over all rounds."""

    median: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Figures:
    """Everything measured of one contender, by workload and number of connections."""

    contender: Contender
    memory_bytes: int | None = None
    warm_up_requests: int = 0
    samples: dict[tuple[Workload, int], list[Sample]] = field(default_factory=dict)

    def over_rounds(self, workload: Workload, connections: int, figure: Callable[[Sample], float]) -> Spread:
        """Return a figure of this measurement over all rounds."""
        values = [figure(sample) for sample in self.samples[workload, connections]]
        return Spread(median=statistics.median(values), low=min(values), high=max(values))

    def requests(self) -> int:
        """Return how many requests were answered in all, warm-up included."""
        return self.warm_up_requests + sum(
            sample.outcome.requests for samples in self.samples.values() for sample in samples
        )

    def failures(self) -> int:
        """Return how many answers were errors and how many connections broke."""
        outcomes = [sample.outcome for samples in self.samples.values() for sample in samples]
        return sum(outcome.bad_status + outcome.broken for outcome in outcomes)


def measure(
    site: Site, contenders: Sequence[tuple[Contender, Up]], *, rounds: int, seconds: int
) -> tuple[dict[str, Figures], dict[str, str]]:
    """Run all rounds; the order turns by one each time.

    Returns the figures by name and, by title, why a contender has none: one that stops answering has no more turns.
    """
    found = {contender.name: Figures(contender=contender) for contender, _ in contenders}
    lost: dict[str, str] = {}
    repeated_run = _new_run()
    for number in range(rounds):
        turn = number % len(contenders)
        for contender, up in [*contenders[turn:], *contenders[:turn]]:
            if contender.name not in found:
                continue
            print(f"Round {number + 1} of {rounds}: {contender.title}", flush=True)
            up.resume()
            try:
                _take_turn(site, up, found[contender.name], seconds, repeated_run)
            except NotRun as error:
                print(f"{contender.title}: {error}", flush=True)
                lost[contender.title] = f"{error.problem} in round {number + 1}"
                del found[contender.name]
            up.pause()
    return found, lost


def _take_turn(site: Site, up: Up, figures: Figures, seconds: int, repeated_run: str) -> None:
    for workload in figures.contender.workloads:
        _measure_workload(site, up, figures, workload, seconds, repeated_run if workload == "repeated" else "")
    if up.running is not None:
        figures.memory_bytes = up.running.memory_bytes()


def _measure_workload(site: Site, up: Up, figures: Figures, workload: Workload, seconds: int, run: str) -> None:
    """Warm up, then take one sample per number of connections. An empty ``run``: new prompts each time."""
    warm_up = Load(workload=workload, connections=WARM_UP_CONNECTIONS, seconds=WARM_UP_SECONDS, run=run or _new_run())
    figures.warm_up_requests += generate(up.address, warm_up).requests
    window = seconds * (STREAM_WINDOWS if workload == "stream" else 1)
    for connections in CONNECTIONS[workload]:
        load = Load(workload=workload, connections=connections, seconds=window, run=run or _new_run())
        figures.samples.setdefault((workload, connections), []).append(_sample(site, up, load))


def _sample(site: Site, up: Up, load: Load) -> Sample:
    asked, spent = upstream.answered(site), _cpu_seconds(up)
    outcome = generate(up.address, load)
    return Sample(
        outcome=outcome,
        cpu_seconds=_cpu_seconds(up) - spent,
        upstream_requests=upstream.answered(site) - asked,
    )


def _cpu_seconds(up: Up) -> float:
    return up.running.cpu_seconds() if up.running is not None else 0.0


def _new_run() -> str:
    return uuid.uuid4().hex[:8]

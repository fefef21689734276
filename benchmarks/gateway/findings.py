"""Everything that one run found, and its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.gateway.contenders import HEARTH
from benchmarks.gateway.idle import Idle
from benchmarks.gateway.ladder import Step
from benchmarks.gateway.pairs import Pair
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.rounds import Figures
from benchmarks.gateway.steady import Steady
from benchmarks.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was measured, where and how. Contenders are named by their short names, in the order of the tables."""

    command: str
    date: str
    commit: str
    machine: Machine
    plan: Plan
    minutes: float
    load_generator: str
    #: Requests a second that the open-loop generator and the upstream can do together.
    open_loop_limit: int
    second_core_is_shared: bool
    figures: Mapping[str, Figures]
    steady: Sequence[Steady]
    idle: Mapping[str, Idle]
    pairs: Mapping[str, Pair]
    ladder: Sequence[Step]
    #: Median time of a choice of replica (benchmarks/gateway/decision.py).
    decision_us: float
    #: Title → why it was not measured, or not everywhere.
    not_run: Mapping[str, str]
    #: Written by Hearth in the closed loop, and how many requests it answered there; None: not known.
    usage_records: int | None
    requests_recorded: int

    @property
    def hearth(self) -> Figures | None:
        """Hearth's figures; None when it was not run."""
        return self.figures.get(HEARTH)

    def title(self, name: str) -> str:
        """Return what a contender is called in a table."""
        title = self.figures[name].contender.title if name in self.figures else name
        return f"**{title}**" if name == HEARTH else title

    def steady_of(self, name: str) -> list[Steady]:
        """Return what was measured of a contender at constant rates."""
        return [each for each in self.steady if each.name == name]


def as_json(run: Run) -> dict[str, object]:
    """Return every sample and every condition."""
    return {
        "command": run.command,
        "date": run.date,
        "commit": run.commit,
        "machine": asdict(run.machine),
        "plan": asdict(run.plan) | {"pairs": None if run.plan.pairs is None else sorted(run.plan.pairs)},
        "minutes": round(run.minutes, 2),
        "load_generator": run.load_generator,
        "open_loop_limit": run.open_loop_limit,
        "second_core_is_shared": run.second_core_is_shared,
        "not_run": dict(run.not_run),
        "usage_records": run.usage_records,
        "requests_recorded": run.requests_recorded,
        "contenders": [_contender(figures) for figures in run.figures.values()],
        "constant_rates": [asdict(each) for each in run.steady],
        "idle_streams": {name: asdict(each) for name, each in run.idle.items()},
        "two_processes": {name: asdict(each) for name, each in run.pairs.items()},
        "decision_us": round(run.decision_us, 1),
        "ladder": [asdict(step) for step in run.ladder],
    }


def _contender(figures: Figures) -> dict[str, object]:
    return {
        "name": figures.contender.name,
        "title": figures.contender.title,
        "memory_bytes": figures.memory_bytes,
        "measurements": [
            asdict(traffic) | {"connections": connections, "samples": [asdict(sample) for sample in samples]}
            for (traffic, connections), samples in figures.samples.items()
        ],
    }

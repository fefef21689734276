"""How near the simulated engine comes to the real one, as a document."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.calibration.costs import Costs
from benchmarks.calibration.trace import LOAD
from benchmarks.machine import Machine

#: The simulated times are evidence if they are within this share of the real ones.
TARGET = 0.1
QUIET_MACHINE = 0.05
QUANTILES = {"p50": 0.5, "p90": 0.9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The times to the first token of one replay, in seconds, and the cached tokens of each request."""

    first_token_seconds: Sequence[float]
    cached_tokens: Sequence[int]

    def quantile(self, share: float) -> float:
        """Return the time within which this share of the requests had their first token."""
        ordered = sorted(self.first_token_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One trace on both engines, and the costs of vLLM's steps just before."""

    costs: Costs
    real: Replay
    simulated: Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that one run found. ``engine``: the package and version of vLLM."""

    command: str
    date: str
    commit: str
    machine: Machine
    engine: str
    requests: int
    rounds: Sequence[Round]


def document(run: Run) -> str:
    """Return the Markdown between the markers of docs/benchmarks.md."""
    return "\n\n".join([_conditions(run), _costs(run.rounds), _table(run.rounds), _target(run.rounds)])


def as_json(run: Run) -> dict[str, object]:
    """Return every sample and every condition."""
    return asdict(run)


def ratios(rounds: Sequence[Round], share: float) -> list[float]:
    """Return the simulated quantile over the real one, of each round."""
    return [each.simulated.quantile(share) / each.real.quantile(share) for each in rounds]


def glance(found: Round) -> str:
    """Return one line about a round."""
    return ", ".join(
        f"{name} {found.real.quantile(share) * 1e3:.0f} ms, simulated {found.simulated.quantile(share) * 1e3:.0f} ms"
        for name, share in QUANTILES.items()
    )


def _conditions(run: Run) -> str:
    lines = [
        f"`{run.command}` on {run.date}, commit {run.commit}.",
        f"{run.machine.described}, {run.engine}.",
        f"{len(run.rounds)} traces of {run.requests} requests, arrivals at {LOAD:.0%} of the time that the requests "
        "would take one after another; each cell is the median of the traces [lowest–highest].",
    ]
    if run.machine.busy_share > QUIET_MACHINE:
        lines.append(
            f"**The machine was not quiet:** others used {run.machine.busy_share:.0%} of it before the run; what slows "
            "vLLM's computing then does not slow the simulated engine's clock."
        )
    return "\n".join(f"- {line}" for line in lines)


def _costs(rounds: Sequence[Round]) -> str:
    costs = [each.costs for each in rounds]
    fixed = _spread([each.fixed * 1e3 for each in costs], "{:.2f}")
    prompt_token = _spread([each.prompt_token * 1e6 for each in costs], "{:.1f}")
    decode = _spread([each.decode * 1e3 for each in costs], "{:.2f}")
    outside = _spread([each.outside * 1e3 for each in costs], "{:.1f}")
    return (
        f"A step of vLLM took {fixed} ms, {prompt_token} µs for each prompt token and {decode} ms for each sequence "
        f"that decodes; a request took {outside} ms outside of steps."
    )


def _table(rounds: Sequence[Round]) -> str:
    rows = ["| time to the first token | vLLM | simulated | simulated / vLLM |", "| --- | ---: | ---: | ---: |"]
    for name, share in QUANTILES.items():
        real = _spread([each.real.quantile(share) * 1e3 for each in rounds], "{:.0f}")
        simulated = _spread([each.simulated.quantile(share) * 1e3 for each in rounds], "{:.0f}")
        rows.append(f"| {name} | {real} ms | {simulated} ms | {_spread(ratios(rounds, share), '{:.2f}')} |")
    real = _spread([sum(each.real.cached_tokens) / 1e3 for each in rounds], "{:.1f}")
    simulated = _spread([sum(each.simulated.cached_tokens) / 1e3 for each in rounds], "{:.1f}")
    same = sum(
        a == b for each in rounds for a, b in zip(each.real.cached_tokens, each.simulated.cached_tokens, strict=True)
    )
    total = sum(len(each.real.cached_tokens) for each in rounds)
    rows.append(f"| cached tokens, thousands | {real} | {simulated} | equal in {same} of {total} requests |")
    return "\n".join(rows)


def _target(rounds: Sequence[Round]) -> str:
    lines = []
    for name, share in QUANTILES.items():
        off = statistics.median(ratios(rounds, share)) - 1
        verdict = "reached" if abs(off) <= TARGET else "**missed**"
        lines.append(f"- {name} within {TARGET:.0%}: {verdict} ({off:+.0%}).")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    middle, lowest, highest = (form.format(each) for each in (statistics.median(values), min(values), max(values)))
    return f"{middle} [{lowest}–{highest}]"

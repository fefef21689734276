"""The document of a run, and its samples as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.cache.plan import CONNECTIONS, SKEW, WARM_PROMPTS, Plan
from benchmarks.cache.questions import Question
from benchmarks.cache.stages import Flight, Window
from benchmarks.gateway.contenders import HEARTH
from benchmarks.gateway.rounds import Sample
from benchmarks.machine import Machine

MEBIBYTE = 1 << 20
#: A machine that is busier than this of its own gives figures to nobody.
QUIET = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, whole. ``titles``: name → title of who was measured; ``not_run``: title → why not."""

    command: str
    date: str
    commit: str
    machine: Machine
    plan: Plan
    titles: Mapping[str, str]
    not_run: Mapping[str, str]
    hits: Mapping[str, Mapping[Question, Sequence[Sample]]]
    second_level: Sample | None
    skewed: Sequence[Window]
    over_quota: Sequence[Window]
    flights: Sequence[Flight]


def document(run: Run) -> str:
    """Return the text for docs/benchmarks.md."""
    machine = run.machine
    lines = [
        f"{run.date}, commit {run.commit}, `{run.command}`: {machine.cpu_model}, {machine.cores} cores, "
        f"{machine.memory_gib} GiB, Linux {machine.kernel}, Python {machine.python}.",
        "",
    ]
    if machine.busy_share > QUIET:
        lines += [f"**Not quiet: others used {machine.busy_share:.0%} of the machine just before.**", ""]
    lines += [*_hits(run), *_second_level(run), *_skewed(run), *_flights(run)]
    lines += [f"Not run: {title}: {why}." for title, why in run.not_run.items()]
    return "\n".join(lines).strip()


def as_json(run: Run) -> dict[str, object]:
    """Return every sample."""
    found = asdict(replace(run, hits={}))  # a question is no key in JSON
    found["hits"] = [
        {"name": name, **asdict(question), "samples": [asdict(sample) for sample in samples]}
        for name, by_question in run.hits.items()
        for question, samples in by_question.items()
    ]
    return found


def _hits(run: Run) -> Iterator[str]:
    yield f"Hits of the first level: {WARM_PROMPTS} prompts in turn, {CONNECTIONS} connections, one core."
    yield ""
    yield "| | answer | hits/s | hits/s per core | CPU µs per hit | p50 ms | to the engine | × Hearth |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, by_question in run.hits.items():
        for question, samples in by_question.items():
            shape = f"{question.answer}{', streamed' if question.streamed else ''}"
            yield _row(run.titles[name], shape, samples, run.hits.get(HEARTH, {}).get(question, ()))
    yield ""


def _row(title: str, shape: str, samples: Sequence[Sample], ours: Sequence[Sample]) -> str:
    rate = _median(samples, lambda sample: sample.rps)
    ratio = f"{rate / _median(ours, lambda sample: sample.rps):.3f}" if ours else ""
    cells = [
        title,
        shape,
        f"{rate:,.0f}",
        f"{_median(samples, lambda sample: sample.rps / max(sample.core_share, 1e-9)):,.0f}",
        f"{_median(samples, lambda sample: sample.cpu_us_per_request):,.0f}",
        f"{_median(samples, lambda sample: sample.outcome.p50_us / 1000):.1f}",
        f"{_median(samples, lambda sample: sample.upstream_share):.1%}",
        ratio,
    ]
    return f"| {' | '.join(cells)} |"


def _second_level(run: Run) -> Iterator[str]:
    if run.second_level is None:
        return
    sample = run.second_level
    yield (
        f"Second level: {run.plan.redis_prompts:,} prompts in turn, more than the first level holds, were asked for "
        f"{run.plan.fill_seconds} s before. From Redis: {sample.rps:,.0f} hits/s, {sample.cpu_us_per_request:,.0f} µs "
        f"of CPU each, p50 {sample.outcome.p50_us / 1000:.1f} ms, {sample.upstream_share:.1%} to the engine."
    )
    yield ""


def _skewed(run: Run) -> Iterator[str]:
    if not run.skewed and not run.over_quota:
        return
    yield f"Skew: {run.plan.skew_prompts:,} prompts, Zipf's exponent {SKEW:g}; windows of {run.plan.skew_seconds} s."
    yield ""
    yield "| | window | requests/s | hits | memory of the gateway, MiB | failures |"
    yield "|---|---|---|---|---|---|"
    for title, windows in (("more than the first level holds", run.skewed), ("quota of 4 MiB", run.over_quota)):
        for number, window in enumerate(windows, 1):
            memory = window.memory_bytes / MEBIBYTE
            rate, failures = window.sample.rps, window.sample.failures
            yield f"| {title} | {number} | {rate:,.0f} | {window.hit_share:.1%} | {memory:.0f} | {failures} |"
    yield ""


def _flights(run: Run) -> Iterator[str]:
    if not run.flights:
        return
    asked = [flight.engine_requests for flight in run.flights]
    whole = sum(flight.whole for flight in run.flights)
    streams = sum(flight.streams for flight in run.flights)
    yield (
        f"{run.flights[0].streams} identical streams at once, {len(run.flights)} times: the engine saw "
        f"{min(asked)} to {max(asked)} requests (median {statistics.median(asked):g}); "
        f"{whole:,} of {streams:,} answers were whole."
    )
    yield ""


def _median(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    return statistics.median(map(figure, samples))

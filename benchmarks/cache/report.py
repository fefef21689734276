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
#: Hits of 1 KB that one core is to give from the first level, per second.
TARGET_HITS = 10_000


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
    flights: Mapping[str, Sequence[Flight]]


def document(run: Run) -> str:
    """Return the text for docs/benchmarks.md."""
    machine = run.machine
    lines = [
        f"{run.date}, commit {run.commit}, `{run.command}`: {machine.described}.",
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
    ours = run.hits.get(HEARTH, {}).get(Question(), ())
    if ours:
        rate = _median(ours, _per_core)
        outcome = "reached" if rate >= TARGET_HITS else "**missed**"
        yield f"Target: {TARGET_HITS:,} hits of 1 KB a second per core from the first level: {outcome} ({rate:,.0f})."
        yield ""


def _row(title: str, shape: str, samples: Sequence[Sample], ours: Sequence[Sample]) -> str:
    rate = _median(samples, lambda sample: sample.rps)
    ratio = f"{rate / _median(ours, lambda sample: sample.rps):.3f}" if ours else ""
    cells = [
        title,
        shape,
        f"{rate:,.0f}",
        f"{_median(samples, _per_core):,.0f}",
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
        f"{run.plan.fill_seconds} s before. From Redis: {sample.rps:,.0f} hits/s, {_per_core(sample):,.0f} per core, "
        f"{sample.cpu_us_per_request:,.0f} µs of CPU each, p50 {sample.outcome.p50_us / 1000:.1f} ms, "
        f"{sample.upstream_share:.1%} to the engine."
    )
    yield ""


def _skewed(run: Run) -> Iterator[str]:
    if not run.skewed and not run.over_quota:
        return
    yield f"Skew: {run.plan.skew_prompts:,} prompts, Zipf's exponent {SKEW:g}; windows of {run.plan.skew_seconds} s."
    yield ""
    yield "| | window | requests/s | per core | hits | memory of the gateway, MiB | failures |"
    yield "|---|---|---|---|---|---|---|"
    for title, windows in (("more than the first level holds", run.skewed), ("quota of 4 MiB", run.over_quota)):
        for number, window in enumerate(windows, 1):
            sample, memory = window.sample, window.memory_bytes / MEBIBYTE
            rates = f"{sample.rps:,.0f} | {_per_core(sample):,.0f}"
            yield f"| {title} | {number} | {rates} | {window.hit_share:.1%} | {memory:.0f} | {sample.failures} |"
    yield ""


def _flights(run: Run) -> Iterator[str]:
    if not any(run.flights.values()):
        return
    yield f"Identical streams: {run.plan.flight_streams} at once, of a new prompt each time."
    yield ""
    yield "| | times | requests to the engine, fewest to most (median) | whole answers | seconds (median) |"
    yield "|---|---|---|---|---|"
    for name, flights in run.flights.items():
        if flights:
            asked = [flight.engine_requests for flight in flights]
            whole, streams = sum(flight.whole for flight in flights), sum(flight.streams for flight in flights)
            seconds = statistics.median(flight.seconds for flight in flights)
            requests = f"{min(asked)} to {max(asked)} ({statistics.median(asked):g})"
            yield f"| {run.titles[name]} | {len(flights)} | {requests} | {whole:,} of {streams:,} | {seconds:.2f} |"
    yield ""


def _per_core(sample: Sample) -> float:
    """Return the answers that one whole second of processor time gives."""
    return sample.rps / max(sample.core_share, 1e-9)


def _median(samples: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    return statistics.median(map(figure, samples))

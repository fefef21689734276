"""Turn figures into one document: the tables, the conditions, and where Hearth is behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.gateway.contenders import DIRECT, HEARTH
from benchmarks.gateway.load import Workload
from benchmarks.gateway.rounds import STREAM_WINDOWS, Figures, Sample, Spread
from benchmarks.machine import Machine

BUSY_CONNECTIONS = 64
STREAM_CONNECTIONS = 16
#: Below this share of its core something else was the limit.
BUSY_CORE = 0.9
QUIET_MACHINE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that one run found. ``not_run``: title → why; ``usage_records``: written by Hearth, None unknown."""

    command: str
    date: str
    commit: str
    machine: Machine
    load_generator: str
    rounds: int
    seconds: int
    figures: Mapping[str, Figures]
    not_run: Mapping[str, str]
    usage_records: int | None


def document(run: Run) -> str:
    """Return the Markdown between the markers of docs/benchmarks.md."""
    parts = [
        _conditions(run),
        "### Whole answers\n\n" + _whole_table(run),
        "### Streams of 64 events, 16 connections\n\n" + _stream_table(run),
        "### Where Hearth is behind\n\n" + _behind(run),
        "### Checks\n\n" + _checks(run),
    ]
    return "\n\n".join(parts)


def as_json(run: Run) -> dict[str, object]:
    """Return every sample and every condition."""
    return {
        "command": run.command,
        "date": run.date,
        "commit": run.commit,
        "machine": asdict(run.machine),
        "load_generator": run.load_generator,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "not_run": dict(run.not_run),
        "usage_records": run.usage_records,
        "contenders": [_contender_json(figures) for figures in run.figures.values()],
    }


def _contender_json(figures: Figures) -> dict[str, object]:
    return {
        "name": figures.contender.name,
        "title": figures.contender.title,
        "memory_bytes": figures.memory_bytes,
        "measurements": [
            {"workload": workload, "connections": connections, "samples": [asdict(sample) for sample in samples]}
            for (workload, connections), samples in figures.samples.items()
        ],
    }


def _conditions(run: Run) -> str:
    machine = run.machine
    lines = [
        f"`{run.command}` on {run.date}, commit {run.commit}.",
        f"{machine.cpu_model}, {machine.cores} cores used, {machine.memory_gib:g} GiB, Linux {machine.kernel}, "
        f"Python {machine.python}, {run.load_generator}.",
        f"Rounds: {run.rounds}, {run.seconds} s per measurement (streams {STREAM_WINDOWS * run.seconds} s); "
        "each cell is the median [lowest–highest] of the rounds.",
    ]
    if machine.busy_share > QUIET_MACHINE:
        lines.append(
            f"**Not a quiet machine: other programs used {machine.busy_share:.0%} of its cores just before. "
            "Do not quote these figures.**"
        )
    lines.extend(f"{title}: not run: {why}." for title, why in run.not_run.items())
    return "\n".join(f"- {line}" for line in lines)


def _whole_table(run: Run) -> str:
    header = ["", "req/s, 1 conn", "16 conn", "64 conn", "p50, 1 conn", "p99, 1 conn", "added p50"]
    header += ["CPU/req, 64 conn", "memory", "× Hearth, 64 conn"]
    rows = [_whole_row(run, figures, "new") for figures in run.figures.values()]
    hearth = run.figures.get(HEARTH)
    if hearth is not None:
        position = list(run.figures).index(HEARTH) + 1
        rows.insert(position, _whole_row(run, hearth, "repeated"))
    return _table(header, rows)


def _whole_row(run: Run, figures: Figures, workload: Workload) -> list[str]:
    title = figures.contender.title
    if figures.contender.name == HEARTH:
        title = f"**{title}**, {_hits(figures) if workload == 'repeated' else 'everything on'}"
    p50 = figures.over_rounds(workload, 1, lambda sample: sample.outcome.p50_us)
    p99 = figures.over_rounds(workload, 1, lambda sample: sample.outcome.p99_us)
    return [
        title,
        *(_count(figures.over_rounds(workload, connections, _rps)) for connections in (1, 16, BUSY_CONNECTIONS)),
        _milliseconds(p50.median),
        _milliseconds(p99.median),
        _added(run, figures, p50),
        _cpu(figures, workload, BUSY_CONNECTIONS),
        _memory(figures),
        _ratio(run, figures, workload, BUSY_CONNECTIONS),
    ]


def _hits(figures: Figures) -> str:
    """Name the row, with the share of misses if there is one: Redis answers too late when the machine is busy."""
    missed = figures.over_rounds("repeated", BUSY_CONNECTIONS, _upstream_share).high
    return "prediction hits" if missed < 0.001 else f"prediction hits (up to {missed:.1%} missed)"


def _stream_table(run: Run) -> str:
    header = ["", "streams/s", "events/s", "p50", "CPU/stream", "× Hearth"]
    rows = []
    for figures in run.figures.values():
        rate = figures.over_rounds("stream", STREAM_CONNECTIONS, _rps)
        p50 = figures.over_rounds("stream", STREAM_CONNECTIONS, lambda sample: sample.outcome.p50_us)
        rows.append(
            [
                f"**{figures.contender.title}**" if figures.contender.name == HEARTH else figures.contender.title,
                _count(rate),
                f"{rate.median * 64:,.0f}",
                _milliseconds(p50.median),
                _cpu(figures, "stream", STREAM_CONNECTIONS),
                _ratio(run, figures, "stream", STREAM_CONNECTIONS),
            ]
        )
    return _table(header, rows)


def _behind(run: Run) -> str:
    """Say in words every figure in which another gateway beats Hearth by more than the spread of a quiet run."""
    hearth = run.figures.get(HEARTH)
    if hearth is None:
        return "Hearth was not run."
    lines = []
    for figures in run.figures.values():
        if figures.contender.name in {DIRECT, HEARTH}:
            continue
        lost = [text for text in _losses(hearth, figures) if text]
        if lost:
            lines.append(f"- {figures.contender.title}: {'; '.join(lost)}.")
    return "\n".join(lines) or "Nowhere in this run."


def _losses(hearth: Figures, other: Figures) -> list[str]:
    def more(workload: Workload, connections: int, what: str) -> str:
        ours = hearth.over_rounds(workload, connections, _rps).median
        theirs = other.over_rounds(workload, connections, _rps).median
        return f"{theirs / ours:.2f} × as many {what}" if theirs > 1.05 * ours > 0 else ""

    def p50(figures: Figures) -> float:
        return figures.over_rounds("new", 1, lambda sample: sample.outcome.p50_us).median

    slower = p50(hearth) / p50(other) if p50(other) else 0.0
    memory = (hearth.memory_bytes or 0) / other.memory_bytes if other.memory_bytes else 0.0
    return [
        more("new", 1, "requests/s at 1 connection"),
        more("new", 16, "at 16"),
        more("new", BUSY_CONNECTIONS, "at 64"),
        more("stream", STREAM_CONNECTIONS, "streams/s"),
        f"Hearth's p50 at 1 connection is {slower:.2f} × as long" if slower > 1.05 else "",
        f"Hearth takes {memory:.1f} × the memory" if memory > 1.05 else "",
    ]


def _checks(run: Run) -> str:
    lines = []
    for figures in run.figures.values():
        if figures.failures():
            lines.append(f"{figures.contender.title}: {figures.failures()} requests failed.")
        busy = figures.over_rounds("new", BUSY_CONNECTIONS, lambda sample: sample.core_share).median
        if figures.contender.name != DIRECT and busy < BUSY_CORE:
            lines.append(
                f"{figures.contender.title} used {busy:.0%} of its core at 64 connections: something else held it back."
            )
    hearth = run.figures.get(HEARTH)
    if hearth is not None:
        missed = hearth.over_rounds("repeated", BUSY_CONNECTIONS, _upstream_share)
        lines.append(f"Of the requests that were prediction hits before, at most {missed.high:.1%} asked the upstream.")
        if run.usage_records is not None:
            lines.append(
                f"Hearth answered {hearth.requests():,} requests and its database has {run.usage_records:,} usage "
                "records (more, because the load generator leaves some requests unanswered when its time is up)."
            )
    return "\n".join(f"- {line}" for line in lines)


def _rps(sample: Sample) -> float:
    return sample.rps


def _upstream_share(sample: Sample) -> float:
    return sample.upstream_requests / max(1, sample.outcome.requests)


def _count(spread: Spread) -> str:
    digits = 0 if spread.median >= 100 else 1
    return f"{spread.median:,.{digits}f} [{spread.low:,.{digits}f}–{spread.high:,.{digits}f}]"


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms" if microseconds else "–"


def _added(run: Run, figures: Figures, p50: Spread) -> str:
    direct = run.figures.get(DIRECT)
    if direct is None or figures is direct:
        return "–"
    return _milliseconds(p50.median - direct.over_rounds("new", 1, lambda sample: sample.outcome.p50_us).median)


def _cpu(figures: Figures, workload: Workload, connections: int) -> str:
    if figures.memory_bytes is None:
        return "–"
    spent = figures.over_rounds(workload, connections, lambda sample: sample.cpu_us_per_request).median
    return f"{spent:,.0f} µs" if spent < 10_000 else f"{spent / 1000:,.0f} ms"


def _memory(figures: Figures) -> str:
    return "–" if figures.memory_bytes is None else f"{figures.memory_bytes / 2**20:,.0f} MiB"


def _ratio(run: Run, figures: Figures, workload: Workload, connections: int) -> str:
    hearth = run.figures.get(HEARTH)
    if hearth is None or figures.contender.name == DIRECT:
        return "–"
    against: Workload = "stream" if workload == "stream" else "new"
    ours = hearth.over_rounds(against, connections, _rps).median
    theirs = figures.over_rounds(workload, connections, _rps).median
    return f"{theirs / ours:.2f}" if ours else "–"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ruler, *rows])

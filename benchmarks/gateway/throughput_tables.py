"""The tables of the closed loop: whole answers, streams, larger bodies, two processes, the ladder."""

from __future__ import annotations

from benchmarks.gateway import tables
from benchmarks.gateway.contenders import DIRECT, HEARTH
from benchmarks.gateway.findings import Run
from benchmarks.gateway.load import HITS, NEW, REPLAY, STREAM, Traffic
from benchmarks.gateway.plan import BUSY_CONNECTIONS
from benchmarks.gateway.rounds import Figures, Sample

#: That the mock upstream streams; a replayed answer comes in as few as it takes.
EVENTS = 64


def cpu_us(sample: Sample) -> float:
    """Return the processor time of one request, microseconds."""
    return sample.cpu_us_per_request


def p50_us(sample: Sample) -> float:
    """Return the median latency, microseconds."""
    return sample.outcome.p50_us


def p99_us(sample: Sample) -> float:
    """Return the 99th percentile of the latency, microseconds."""
    return sample.outcome.p99_us


def added_p50_us(run: Run, figures: Figures, traffic: Traffic) -> float | None:
    """Return the median latency at one connection less that of no gateway, microseconds."""
    direct = run.figures.get(DIRECT)
    theirs = figures.median(traffic, 1, p50_us)
    least = None if direct is None else direct.median(NEW, 1, p50_us)
    return None if theirs is None or least is None or figures is direct else theirs - least


def whole(run: Run) -> str:
    """Return the table of answers in one piece; Hearth has a row for new prompts and one for prediction hits."""
    connections = run.plan.connections
    header = ["", *(f"req/s, {number} conn" for number in connections)]
    header += ["p50, 1 conn", "p99, 1 conn", "added p50", "CPU/req, 64 conn", "memory", "× Hearth, 64 conn"]
    rows = []
    for figures in run.figures.values():
        rows.append(_whole_row(run, figures, NEW))
        if figures.contender.name == HEARTH:
            rows.append(_whole_row(run, figures, HITS))
    return tables.table(header, rows)


def _whole_row(run: Run, figures: Figures, traffic: Traffic) -> list[str]:
    name = figures.contender.name
    title = run.title(name)
    if name == HEARTH:
        title += f", {_hits(figures)}" if traffic == HITS else ", everything on"
    ours = run.hearth.rps(NEW, BUSY_CONNECTIONS) if run.hearth else None
    rate = figures.rps(traffic, BUSY_CONNECTIONS)
    return [
        title,
        *(
            tables.spread(figures.over_rounds(traffic, number, lambda sample: sample.rps))
            for number in run.plan.connections
        ),
        tables.milliseconds(figures.median(traffic, 1, p50_us)),
        tables.milliseconds(figures.median(traffic, 1, p99_us)),
        tables.milliseconds(added_p50_us(run, figures, traffic)),
        _cpu(figures, traffic, BUSY_CONNECTIONS),
        tables.mebibytes(figures.memory_bytes),
        tables.ratio(rate, ours),
    ]


def _hits(figures: Figures) -> str:
    """Name the row, with the share of misses if there is one: Redis answers too late when the machine is busy."""
    missed = figures.over_rounds(HITS, BUSY_CONNECTIONS, lambda sample: sample.upstream_share)
    if missed is None or missed.high < 0.001:
        return "prediction hits"
    return f"prediction hits (up to {missed.high:.1%} missed)"


def streams(run: Run) -> str:
    """Return the table of short streams; Hearth has a row for new prompts and one for prediction hits."""
    rows = []
    for name, figures in run.figures.items():
        rows.append(_stream_row(run, figures, STREAM))
        if name == HEARTH:
            rows.append(_stream_row(run, figures, REPLAY))
    return tables.table(["", "streams/s", "events/s", "p50", "CPU/stream", "× Hearth"], rows)


def _stream_row(run: Run, figures: Figures, traffic: Traffic) -> list[str]:
    connections = run.plan.stream_connections
    title = run.title(figures.contender.name)
    rate = figures.rps(traffic, connections)
    return [
        f"{title}, prediction hits" if traffic == REPLAY else title,
        tables.spread(figures.over_rounds(traffic, connections, lambda sample: sample.rps)),
        tables.count(None if rate is None or traffic == REPLAY else rate * EVENTS),
        tables.milliseconds(figures.median(traffic, connections, p50_us)),
        _cpu(figures, traffic, connections),
        tables.ratio(rate, run.hearth.rps(STREAM, connections) if run.hearth else None),
    ]


def larger(run: Run) -> str:
    """Return the table of larger bodies, whole answers and streams; the small ones are there to compare."""
    sizes = run.plan.larger_bodies
    header = [""]
    for kind in ("req/s", "streams/s"):
        header += [f"{kind}, {tables.size(size)}" for size in sizes]
    header += [f"CPU/req, {tables.size(size)}" for size in sizes]
    header += [f"× Hearth, {tables.size(size)}" for size in sizes]
    rows = []
    for name, figures in run.figures.items():
        rows.append([run.title(name), *_larger_cells(run, figures, sizes, repeats=False)])
        if name == HEARTH:
            hits = _larger_cells(run, figures, sizes, repeats=True)
            rows.append([f"{run.title(name)}, prediction hits", *hits])
    return tables.table(header, rows)


def _larger_cells(run: Run, figures: Figures, sizes: tuple[int, ...], *, repeats: bool) -> list[str]:
    connections = run.plan.larger_connections
    whole = [Traffic("repeated" if repeats else "new", size) for size in sizes]
    streamed = [Traffic("replayed" if repeats else "stream", size) for size in sizes]
    ours = [run.hearth.rps(Traffic("new", size), connections) if run.hearth else None for size in sizes]
    return [
        *(tables.count(figures.rps(traffic, connections)) for traffic in whole),
        *(tables.count(figures.rps(traffic, connections)) for traffic in streamed),
        *(_cpu(figures, traffic, connections) for traffic in whole),
        *(tables.ratio(figures.rps(traffic, connections), each) for traffic, each in zip(whole, ours, strict=True)),
    ]


def pairs(run: Run) -> str:
    """Return the table of two processes."""
    rows = []
    for name, pair in run.pairs.items():
        one = run.figures[name].rps(NEW, BUSY_CONNECTIONS)
        rows.append(
            [
                run.title(name),
                tables.count(one),
                tables.count(pair.sample.rps),
                tables.ratio(pair.sample.rps, one),
                _cpu(run.figures[name], NEW, BUSY_CONNECTIONS),
                tables.cpu(pair.sample.cpu_us_per_request),
                tables.mebibytes(pair.memory_bytes),
            ]
        )
    header = ["64 connections", "req/s, one", "req/s, two", "two / one", "CPU/req, one", "CPU/req, two", "memory, two"]
    return tables.table(header, rows)


def ladder(run: Run) -> str:
    """Return the ladder: what each rung reaches, and what it costs more than the one below."""
    connections = run.plan.ladder_connections
    busy = connections[-1]
    header = [
        "stage",
        *(f"req/s, {number} conn" for number in connections),
        f"CPU/req, {busy} conn",
        "more than before",
    ]
    if 1 in connections:
        header.append("p50, 1 conn")
    rows = []
    before: float | None = None
    for step in run.ladder:
        spent = step.samples[busy].cpu_us_per_request
        row = [step.title, *(tables.count(step.samples[number].rps) for number in connections), tables.cpu(spent)]
        row.append(tables.NOTHING if before is None else f"{spent - before:+,.0f} µs")
        if 1 in connections:
            row.append(tables.milliseconds(step.samples[1].outcome.p50_us))
        rows.append(row)
        before = spent
    return tables.table(header, rows)


def _cpu(figures: Figures, traffic: Traffic, connections: int) -> str:
    if figures.memory_bytes is None:  # no gateway has no process
        return tables.NOTHING
    return tables.cpu(figures.median(traffic, connections, cpu_us))

"""The whole run in one table: each contender's main figures, and how many times Hearth's they are."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.gateway import tables
from benchmarks.gateway.contenders import DIRECT, HEARTH
from benchmarks.gateway.findings import Run
from benchmarks.gateway.load import NEW, STREAM, Traffic
from benchmarks.gateway.plan import BUSY_CONNECTIONS
from benchmarks.gateway.throughput_tables import added_p50_us, cpu_us

Figure = Callable[[str], float | None]


def table(run: Run) -> str:
    """Return it; the figure of no gateway is there to compare and has no ratio."""
    columns = _columns(run)
    rows = []
    for name in run.figures:
        cells = [_cell(run, name, figure, shown) for _, figure, shown in columns]
        rows.append([run.title(name), *cells])
    return tables.table(["(× Hearth)", *(title for title, _, _ in columns)], rows)


def _columns(run: Run) -> list[tuple[str, Figure, Callable[[float | None], str]]]:
    """Return title, figure by contender, and how it is shown."""
    largest = run.plan.larger_bodies[-1]

    def rate(traffic: Traffic, connections: int) -> Figure:
        return lambda name: run.figures[name].rps(traffic, connections)

    def cpu(name: str) -> float | None:
        return None if name == DIRECT else run.figures[name].median(NEW, BUSY_CONNECTIONS, cpu_us)

    def idle(name: str) -> float | None:
        return run.idle[name].memory_bytes if name in run.idle else None

    return [
        (f"req/s, {BUSY_CONNECTIONS} conn", rate(NEW, BUSY_CONNECTIONS), tables.count),
        (f"req/s of {tables.size(largest)}", rate(Traffic("new", largest), run.plan.larger_connections), tables.count),
        ("streams/s", rate(STREAM, run.plan.stream_connections), tables.count),
        ("added p50, 1 conn", lambda name: added_p50_us(run, run.figures[name], NEW), tables.milliseconds),
        ("CPU/req", cpu, tables.cpu),
        (f"memory, {run.plan.idle_streams:,} idle streams", idle, tables.mebibytes),
    ]


def _cell(run: Run, name: str, figure: Figure, shown: Callable[[float | None], str]) -> str:
    found = figure(name)
    ours = figure(HEARTH) if run.hearth is not None and name not in {HEARTH, DIRECT} else None
    return shown(found) if found is None or not ours else f"{shown(found)} ({tables.ratio(found, ours)})"

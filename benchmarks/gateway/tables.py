"""Numbers as a reader wants them, in Markdown. What was not measured is a dash."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.gateway.rounds import Spread

NOTHING = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    ruler = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ruler, *rows])


def bullets(lines: Sequence[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {line}" for line in lines)


def count(value: float | None) -> str:
    """Return requests, streams or the like per second."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def spread(found: Spread | None) -> str:
    """Return the median and, if there was more than one round, the lowest and the highest."""
    if found is None:
        return NOTHING
    if found.low == found.high:
        return count(found.median)
    return f"{count(found.median)} [{count(found.low)}–{count(found.high)}]"


def milliseconds(microseconds: float | None) -> str:
    """Return a time in milliseconds."""
    return NOTHING if microseconds is None else f"{microseconds / 1000:,.2f} ms"


def cpu(microseconds: float | None) -> str:
    """Return processor time."""
    if microseconds is None:
        return NOTHING
    return f"{microseconds:,.0f} µs" if microseconds < 10_000 else f"{microseconds / 1000:,.0f} ms"


def mebibytes(size_bytes: float | None) -> str:
    """Return memory."""
    return NOTHING if size_bytes is None else f"{size_bytes / 2**20:,.0f} MiB"


def ratio(theirs: float | None, ours: float | None) -> str:
    """Return how many times ``ours`` the other is."""
    return NOTHING if theirs is None or not ours else f"{theirs / ours:.2f} ×"


def size(size_bytes: int) -> str:
    """Return the size of a body."""
    return f"{size_bytes // 1000} KB"

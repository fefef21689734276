"""Format rows as a table of plain text: aligned, without colours and frames, fit for ``grep`` and ``awk``."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table. An empty cell is a dash, so that each row has at least one word for each column."""
    cells = [[" ".join(cell.split()) or "-" for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(headings), *cells]) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [headings, *cells]
    )


def duration(seconds: float | None) -> str:
    """Format a duration: ``850ms``, ``4.2s``, ``3m05s``, ``2h10m``, ``5d03h``; empty for None."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def gigabytes(count: int | None) -> str:
    """Format an amount of data in GB, small ones in MB; empty for None."""
    if count is None:
        return ""
    return f"{count / 1e9:.1f}GB" if count >= 1e8 else f"{count / 1e6:.1f}MB"


def mebibytes(count: int | None) -> str:
    """Format an amount of memory in MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f}M"

"""CSV as spreadsheets read it (RFC 4180), safe against cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence

from django.http import StreamingHttpResponse

#: A cell that starts so is a formula to a spreadsheet; a leading apostrophe makes it text again.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class _Echo:
    """A file that hands back what is written to it."""

    def write(self, line: str) -> str:
        """Return the line."""
        return line


def attachment(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> StreamingHttpResponse:
    """Return a download, written row by row: a month of requests is never in memory at once."""
    response = StreamingHttpResponse(_lines(header, rows), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(header)
    for row in rows:
        yield writer.writerow([_plain(cell) for cell in row])


def _plain(cell: str) -> str:
    if cell.startswith(FORMULA_STARTS) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

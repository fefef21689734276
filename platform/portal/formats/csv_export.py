"""CSV as spreadsheets read it (RFC 4180), safe against cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from itertools import islice
from typing import TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from tenants.database import rls
from tenants.ids import TenantId

#: Spreadsheets run a cell with such a first character as a formula; a leading apostrophe makes it text.
#: Some take the full-width forms for the same.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_FORMULA_STARTS = frozenset(FORMULA_STARTS)
#: Lines that one call in a worker thread produces.
CHUNK_LINES = 500
_TYPE = "text/csv; charset=utf-8"

_Response = TypeVar("_Response", bound=HttpResponseBase)


class _Echo:
    """A file whose ``write`` returns the text, so that ``csv.writer`` returns each line."""

    def write(self, line: str) -> str:
        """Return the line."""
        return line


def attachment(
    request: HttpRequest, name: str, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> StreamingHttpResponse:
    """Return a streamed download, so that a month of requests is never in memory at once.

    Rows are read after the request has ended, within the confinement that it has now.
    """
    lines = _confined(_lines(header, rows), rls.confinement())
    # under ASGI, Django would first read a plain iterator to its end
    body = _in_chunks(lines) if isinstance(request, ASGIRequest) else lines
    return _as_file(StreamingHttpResponse(body, content_type=_TYPE), name)


def document(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> HttpResponse:
    """Return a download of rows that are in memory already."""
    return _as_file(HttpResponse("".join(_lines(header, rows)), content_type=_TYPE), name)


def cell(value: datetime | int | str | None) -> str:
    """Write a value as a cell: a moment as ISO 8601, None as nothing."""
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _as_file(response: _Response, name: str) -> _Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response.headers["Cache-Control"] = "no-store"
    return response


async def _in_chunks(lines: Iterator[str]) -> AsyncIterator[str]:
    """Yield the lines in chunks, each produced in the thread that may use the database."""
    while chunk := await sync_to_async(lambda: list(islice(lines, CHUNK_LINES)))():
        yield "".join(chunk)


def _confined(lines: Iterator[str], projects: Mapping[TenantId, Set[UUID]]) -> Iterator[str]:
    """Yield the lines, each read within this confinement."""
    while True:
        with rls.confined_to(projects):
            line = next(lines, None)
        if line is None:
            return
        yield line


def _lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    writer = csv.writer(_Echo())
    yield writer.writerow(header)
    for row in rows:
        yield writer.writerow([_plain(cell) if cell[:1] in _FORMULA_STARTS else cell for cell in row])


def _plain(cell: str) -> str:
    return cell if _is_number(cell) else f"'{cell}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

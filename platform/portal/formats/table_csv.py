"""A table of a page as CSV: ``?csv=`` and the table's name, behind any page's address.

The page's own view answers, so that the rows are those of the page's filters and of the reader's rights; it only reads
more of them (``most``). What the page shows of them becomes the file, times and cut texts in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.text import slugify
from django.utils.translation import gettext as _
from lxml import html

from portal.errors import BadQuery
from portal.formats import csv_export

#: Rows that a file has at most; its last line says that there are more. A page of them takes a few seconds.
MOST_ROWS = 10_000

#: What of a cell is for a pointer, not to be read.
_CONTROLS = "button | .//input | .//textarea | .//dialog | .//*[local-name()='svg']"

Element = Any  # lxml has no types


def wanted(request: HttpRequest) -> str:
    """Return the name of the table that is asked for; empty for the page."""
    return request.GET.get("csv", "") if request.method == "GET" else ""


def most(request: HttpRequest, table: str, shown: int) -> int:
    """Return how many rows of a table its view reads: ``shown`` for the page, one more than fit for its file."""
    return MOST_ROWS + 1 if wanted(request) == table else shown


def of_page(request: HttpRequest, page: str, name: str) -> HttpResponse:
    """Return a table of a page as a file. Raises BadQuery if the page has no such table."""
    root = html.fromstring(page)
    tables = {each.get("data-testid"): each for each in root.xpath("//table[@data-testid]")}
    if name not in tables:
        raise BadQuery("csv", name, f"a table that has rows: {', '.join(sorted(tables)) or 'this page has none'}")
    header, *rows = _rows(tables[name])
    if len(rows) > MOST_ROWS:
        cut = _("Only the first %(rows)s rows. Choose fewer with the filters of the page.") % {"rows": MOST_ROWS}
        rows[MOST_ROWS:] = [[cut]]
    path = slugify(request.path.removeprefix("/portal/").replace("/", " "))
    return csv_export.document("-".join(filter(None, (path, slugify(name)))), header, rows)


def _rows(table: Element) -> Iterator[list[str]]:
    """Yield the names of the columns, then the rows; without the columns of buttons, whose names are unseen."""
    head = table.xpath("./thead/tr[last()]/th")
    kept = [not cell.xpath(".//*[contains(concat(' ', @class, ' '), ' unseen ')]") for cell in head]
    yield [_text(cell) for cell, is_kept in zip(head, kept, strict=True) if is_kept]
    for row in table.xpath("./tbody/tr"):
        cells = row.xpath("./td | ./th")
        yield [_text(cell) for number, cell in enumerate(cells) if number >= len(kept) or kept[number]]


def _text(cell: Element) -> str:
    """Return what a cell says."""
    for each in cell.xpath(".//*[@data-csv] | .//time[@datetime] | .//select | .//br"):
        if each.tag == "select":
            chosen = each.xpath(".//option[@selected]") or each.xpath(".//option")[:1]
            said = chosen[0].text_content() if chosen else ""
        else:
            said = " " if each.tag == "br" else each.get("data-csv") or each.get("datetime")
        for child in list(each):
            each.remove(child)
        each.text = said
    for each in cell.xpath(f".//{_CONTROLS}"):
        each.drop_tree()
    return " ".join(cell.text_content().split())

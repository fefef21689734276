"""`hearth reconcile`: compare what engines counted, what is stored as usage, and the books."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from reconciliation.report import Book, Boot, Report  # its models need Django


@click.command(short_help="Compare engines' counters, usage, the ledger, roll-ups and closed months.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m"]),
    help="Compare processes that ended, and months, from this day or month on (UTC). Without it: two days, this month.",
)
@click.option(
    "--settle",
    "settle_minutes",
    type=click.IntRange(0, 1440),
    default=10,
    show_default=True,
    metavar="MINUTES",
    help="Judge processes that ended this long ago; until then their last requests may not be stored yet.",
)
@click.option("--all", "show_all", is_flag=True, help="List every engine process, not only those with a gap.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def reconcile(
    context: click.Context, since: dt.datetime | None, settle_minutes: int, show_all: bool, as_json: bool
) -> None:
    """Compare the counters of each engine process with the usage of its requests, and usage with the books.

    The books are the ledger, the roll-ups, those of days and half-hours, which must equal the roll-ups and are made
    again where they do not, and the frozen lines of closed months, which must equal the ledger.

    Exit status 1 if a token or an amount is missing or too many: it says where, and which requests to look at.
    docs/operations/usage.md, section "Proof from the engines", explains the results.
    """
    with on_database("Usage cannot be compared"):
        from reconciliation import report, run

        run.compare(
            settle=dt.timedelta(minutes=settle_minutes), since=None if since is None else since.replace(tzinfo=dt.UTC)
        )
        found = report.read(show_all=show_all)
    if as_json:
        print(json.dumps(asdict(found), indent=2, default=str))
    else:
        _print(found)
    if found.boot_gaps or found.book_gaps:
        context.exit(1)


def _print(found: Report) -> None:
    if found.boots:
        headings = ("REPLICA", "GEN", "MODEL", "RESULT", "COUNTED", "USED", "CUT", "LOST", "GAP", "ENDED")
        print(table(headings, [_cells(each) for each in found.boots]))
    for boot in found.boots:
        if boot.state == "gap":
            print(f"{boot.replica_id} generation {boot.generation}: {boot.note}")
            print("  " + (f"look at: {' '.join(boot.candidates)}" if boot.candidates else "no request names it"))
    for book in found.books:
        print(f"tenant {book.tenant or book.tenant_id}, {book.month} {book.currency}: {_difference(book)}")
    print(
        f"{found.boot_gaps} of {found.compared_boots} engine processes and {found.book_gaps} of {found.compared_books}"
        f" sums of the books differ; {found.lost_tokens} tokens were lost with killed engines."
    )


def _difference(book: Book) -> str:
    if book.book == "closed month":
        return f"ledger {book.usage_pico} pico; the lines of the closed month {book.book_pico} pico"
    if book.book == "daily bypasses":
        return f"roll-ups {book.usage_tokens} requests that bypassed the cache; daily roll-ups {book.book_tokens}"
    from reconciliation.ledger import CHECKS

    if book.book in CHECKS:
        return f"`hearth ledger verify` says {book.book} differs: {book.book_pico} instead of {book.usage_pico}"
    of_what = "roll-ups" if book.book == "daily roll-ups" else "usage"
    usage = f"{of_what} {book.usage_pico} pico, {book.usage_tokens} tokens"
    return f"{usage}; {book.book} {book.book_pico} pico, {book.book_tokens} tokens"


def _cells(each: Boot) -> tuple[str, ...]:
    numbers = (each.counted_tokens, each.used_tokens, each.cut_tokens, each.lost_tokens, each.gap_tokens)
    ended = "" if each.ended_at is None else f"{each.ended_at:%Y-%m-%d %H:%M} {each.end}"
    return (each.replica_id, str(each.generation), each.model, each.state, *map(str, numbers), ended)

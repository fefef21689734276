"""`hearth price`: list prices of many models in one CSV file."""

from __future__ import annotations

import csv
import json
import sys
from typing import IO, TYPE_CHECKING

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output import preview_table
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.pricing.price_file import Change  # needs Django


@click.group(short_help="Import and export list prices.")
def price() -> None:
    """Import and export list prices as CSV. docs/billing.md has the columns."""


@price.command("export")
def export() -> None:
    """Print the prices in force as CSV, as `hearth price import` reads it."""
    with on_database("The prices cannot be read"):
        from billing.pricing import price_file

        csv.writer(sys.stdout, lineterminator="\n").writerows(price_file.in_force())


@price.command("import")
@click.argument("file", type=click.File(encoding="utf-8-sig"))
@click.option("--dry-run", is_flag=True, help="Change nothing; show what each tenant's last month would have cost.")
@click.option("--confirm", is_flag=True, help="Allow changes of more than tenfold.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_prices(file: IO[str], dry_run: bool, confirm: bool, as_json: bool) -> None:
    """Set the prices in the CSV FILE, all of them or none; - reads standard input.

    A price that is in force already is not set again.
    """
    with on_database("Nothing was changed"):
        from django.utils import timezone

        from billing.errors import BadPriceFile
        from billing.months import previews
        from billing.pricing import price_file
        from tenants import audit

        try:
            rows = price_file.read(file.read())
            done = price_file.apply(audit.shell("hearth price"), rows, confirm=confirm, dry_run=dry_run)
        except BadPriceFile as error:
            remedy = "Give --confirm if a change of more than tenfold is meant." if error.is_jump else ""
            raise PreflightError(f"{file.name}: {error}.", remedy) from error
        except UnicodeDecodeError as error:
            raise PreflightError(f"{file.name} is no UTF-8 text.", "") from error
        now = timezone.now()
        names = {row.model_name for row in rows}
        seen = previews.of_prices(done.table, names, done.latest, previews.billed_tenants(now), now) if dry_run else ()
        cells = [preview_table.cells(each) for each in seen]
    if as_json:
        changes = [dict(zip(("model", "book", "from"), _change(each), strict=True)) for each in done.changes]
        document = {"changes": changes, "unchanged": done.unchanged, "notes": list(done.notes)}
        print(json.dumps(document | ({"preview": preview_table.as_json(cells)} if dry_run else {}), indent=2))
        return
    for note in done.notes:
        print(f"Note: {note}")
    print(table(("MODEL", "BOOK", "FROM"), [_change(each) for each in done.changes]))
    print(f"{len(done.changes)} {'would change' if dry_run else 'set'}, {done.unchanged} in force already.")
    if dry_run:
        print(table(preview_table.HEADS, cells))


def _change(change: Change) -> tuple[str, ...]:
    return (change.model_name, change.tenant or "platform", f"{change.effective_from:%Y-%m-%d %H:%M}")

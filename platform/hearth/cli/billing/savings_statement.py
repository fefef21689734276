"""`hearth savings-statement`: what the caches saved in a month."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.reports.savings_statement import Row, SavingsStatement  # needs Django

HEADS = ("TENANT", "MODEL", "CACHE", "REQUESTS", "TOKENS", "SAVED", "ENGINE SECONDS")


@click.command(name="savings-statement", short_help="Show what the caches saved in a month.")
@click.argument("month_name", metavar="MONTH", type=MonthName())
@click.option("--tenant", metavar="SLUG", help="Only this tenant's. Default: every tenant's.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, of one tenant.")
def savings_statement(month_name: tuple[int, int], tenant: str | None, as_csv: bool) -> None:
    """Show what prediction and prefix caches saved in MONTH, as YYYY-MM, in tokens, money and engine time.

    Each model has a row, each cache a total. Figures are those of the tenant's closed month, or what requests say now.
    docs/billing/savings-statement.md says how they are computed.
    """
    if as_csv and not tenant:
        raise click.UsageError("--csv prints one tenant's statement: name it with --tenant.")
    rows: list[tuple[str, ...]] = []
    problems = []
    with on_database("The savings cannot be read"):
        from billing.errors import BillingError
        from billing.months import overview
        from billing.reports import savings_statement as statements
        from tenants import registry

        for each in [registry.find_tenant(tenant)] if tenant else overview.tenants(*month_name):
            try:
                found = statements.read(each, *month_name)
            except BillingError as error:
                problems.append(f"{each.slug}: {error}.")
                continue
            if as_csv:
                csv.writer(sys.stdout).writerows(statements.csv_rows(found))
                return
            rows += [_cells(each.slug, found, row) for row in (*statements.rows(found), *statements.totals(found))]
    print(table(HEADS, rows) if rows else f"The caches saved nothing in {month_name[0]}-{month_name[1]:02}.")
    if problems:
        raise PreflightError(f"{len(problems)} tenants are missing.", " ".join(problems))


def _cells(slug: str, found: SavingsStatement, row: Row) -> tuple[str, ...]:
    from billing.pricing import amounts

    seconds = "" if row.engine_ms is None else f"{row.engine_ms / 1000:.3f} "
    return (
        slug,
        row.model_name or "all",
        row.cache,
        "" if row.requests is None else str(row.requests),
        str(row.tokens),
        f"{amounts.units(row.pico, found.currency)} {found.currency}",
        f"{seconds}{row.engine_time_is}",
    )

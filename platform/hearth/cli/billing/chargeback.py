"""`hearth chargeback`: the journal, the FOCUS export, what engines cost, margins, codes of the general ledger."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from tenants.models import Tenant  # needs Django

_MONTH = click.argument("month_name", metavar="MONTH", type=MonthName())
_TENANT = click.option("--tenant", metavar="SLUG", help="Only this tenant's. Default: every tenant's.")
_CSV = click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
_CLASS = click.option("--class", "line_class", default="", help="A class of lines, terms, rounding or credit.")
_MODEL = click.option("--model", "model_name", default="", help="A model's name. Default: any.")


@click.group(short_help="Export closed months for finance: journal, FOCUS.")
def chargeback() -> None:
    """Export closed months for finance, for teams that get no invoices, and show what engines cost.

    docs/billing/chargeback.md says what is in the files.

    \b
    Examples:
      hearth chargeback gl-code set 6100
      hearth chargeback gl-code set 9000 --class credit
      hearth chargeback journal 2026-11 > journal.csv
      hearth chargeback focus 2026-11 > focus.csv
      hearth chargeback costs 2026-11
      hearth chargeback margin 2026-11
    """


@chargeback.command("journal")
@_MONTH
@_TENANT
def print_journal(month_name: tuple[int, int], tenant: str | None) -> None:
    """Print the journal of MONTH, as YYYY-MM, as CSV: bookings from cost centres to the platform.

    Only closed months are in it; tenants whose month is open are named on standard error.
    """
    with _reading(), _of(tenant) as chosen:
        from billing.chargeback import journal

        found = journal.read(*month_name, chosen)
        csv.writer(sys.stdout).writerows(journal.csv_rows(found))
        _name_open(found.open_tenants)


@chargeback.command("focus")
@_MONTH
@_TENANT
def print_focus(month_name: tuple[int, int], tenant: str | None) -> None:
    """Print MONTH, as YYYY-MM, as a dataset of FOCUS 1.2 in CSV. Only closed months are in it."""
    with _reading(), _of(tenant) as chosen:
        from billing.chargeback import closed_months, focus

        csv.writer(sys.stdout).writerows(focus.csv_rows(focus.read(*month_name, chosen)))
        _name_open(closed_months.read(*month_name, chosen).open)


@chargeback.command("costs")
@_MONTH
@_CSV
def show_costs(month_name: tuple[int, int], as_csv: bool) -> None:
    """Show what each deployment cost in MONTH, as YYYY-MM, of UTC: hours of slots, and for a million tokens."""
    with _reading():
        from billing.chargeback import costs
        from portal.reporting.billing import engine_costs

        _show(costs.costs_csv(engine_costs.read(*month_name)), as_csv, "No replica had a slot in that month.")


@chargeback.command("margin")
@_MONTH
@_CSV
def show_margin(month_name: tuple[int, int], as_csv: bool) -> None:
    """Show revenue minus the share of what engines cost, by tenant and model, in MONTH, as YYYY-MM, of UTC."""
    with _reading():
        from billing.chargeback import costs
        from portal.reporting.billing import engine_costs

        _show(costs.margin_csv(engine_costs.read(*month_name)), as_csv, "Nothing was used in that month.")


@chargeback.group("gl-code")
def gl_code() -> None:
    """Set the general ledger's codes for lines. The most exact one counts."""


@gl_code.command("set")
@click.argument("code")
@_CLASS
@_MODEL
def set_gl_code(code: str, line_class: str, model_name: str) -> None:
    """Set CODE for lines of a class and a model. Without both it is for all lines but the platform's (credit)."""
    with on_database("Nothing was changed"):
        from billing.chargeback import gl_codes
        from tenants import audit

        row = gl_codes.set_code(audit.shell("hearth chargeback"), code, line_class=line_class, model_name=model_name)
    print(f"{row.line_class or 'any class'} of {row.model_name or 'any model'}: {row.code}")


@gl_code.command("remove")
@_CLASS
@_MODEL
def remove_gl_code(line_class: str, model_name: str) -> None:
    """Remove the code of a class and a model."""
    with on_database("Nothing was changed"):
        from billing.chargeback import gl_codes
        from tenants import audit

        gl_codes.remove(audit.shell("hearth chargeback"), line_class=line_class, model_name=model_name)
    print("Removed.")


@gl_code.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_gl_codes(as_json: bool) -> None:
    """List the codes."""
    with on_database("The codes cannot be read"):
        from billing.chargeback import gl_codes

        rows = [(row.line_class, row.model_name, row.code) for row in gl_codes.rows()]
    if as_json:
        print(json.dumps([dict(zip(("class", "model", "code"), row, strict=True)) for row in rows], indent=2))
        return
    shown = [(line_class or "any", model or "any", code) for line_class, model, code in rows]
    print(table(("CLASS", "MODEL", "CODE"), shown) if rows else "No codes. Set one: hearth chargeback gl-code set CODE")


@contextmanager
def _reading() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what it refuses."""
    with on_database("Nothing was exported"):
        from billing.errors import BillingError, GlCodeMissing

        try:
            yield
        except GlCodeMissing as error:
            raise PreflightError(f"{error}.", "Set them with `hearth chargeback gl-code set`.") from error
        except BillingError as error:
            raise PreflightError(f"{error}.", "") from error


@contextmanager
def _of(slug: str | None) -> Iterator[Tenant | None]:
    from tenants import registry

    yield registry.find_tenant(slug) if slug else None


def _show(lines: Iterable[tuple[str, ...]], as_csv: bool, empty: str) -> None:
    header, *rows = lines
    if as_csv:
        csv.writer(sys.stdout).writerows([header, *rows])
    else:
        print(table(tuple(name.upper().replace("_", " ") for name in header), rows) if rows else empty)


def _name_open(slugs: tuple[str, ...]) -> None:
    if slugs:
        click.echo(f"Not closed, so not in the file: {', '.join(slugs)}.", err=True)

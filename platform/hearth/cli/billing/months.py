"""`hearth month`: list, close and reopen months."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.months.overview import Standing  # its models need Django
    from billing.reports.statements import Month


@click.group(short_help="List, close and reopen billing months.")
def month() -> None:
    """List, close and reopen billing months.

    Closing freezes the lines of a tenant's statement, taken from the ledger. Usage that arrives later is an adjustment
    on the next month. docs/operations/usage.md, Closing a month, says more.
    """


@month.command("list")
@click.argument("month_name", metavar="MONTH", type=MonthName())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_months(month_name: tuple[int, int], as_json: bool) -> None:
    """Show where MONTH, as YYYY-MM, stands for each tenant."""
    with on_database("The month cannot be read"):
        from billing.months import overview

        found = overview.read(*month_name)
    rows = [_cells(each) for each in found]
    heads = ("TENANT", "STATE", "AMOUNT", "CLOSED", "BY", "REOPENING")
    if as_json:
        print(json.dumps([dict(zip(map(str.lower, heads), row, strict=True)) for row in rows], indent=2))
        return
    print(table(heads, rows) if rows else f"No tenant existed in {month_name[0]}-{month_name[1]:02}.")


@month.command("close")
@click.argument("month_name", metavar="MONTH", type=MonthName())
@click.option("--tenant", metavar="SLUG", help="Only this tenant's. Default: every tenant's.")
@click.option(
    "--without-node",
    "without_nodes",
    metavar="HOST",
    multiple=True,
    help="Do not wait for the drain of this host, which is lost for good. Repeatable.",
)
def close_month(month_name: tuple[int, int], tenant: str | None, without_nodes: tuple[str, ...]) -> None:
    """Close MONTH, as YYYY-MM: freeze its lines. A closed month stays as it is.

    Each tenant's month closes on its own: if one cannot be closed, the others are, and the exit status is 1.
    """
    refused = []
    with on_database("No more months are closed"):
        from billing.errors import NotClosed
        from billing.months import closing, overview
        from billing.reports import statements
        from tenants import audit, registry

        year, number = month_name
        chosen = [registry.find_tenant(tenant)] if tenant else overview.tenants(year, number)
        for each in chosen:
            one = statements.Month(tenant=each, year=year, month=number)
            try:
                closed, new = closing.close(audit.shell("hearth month"), one, without_nodes=without_nodes)
            except NotClosed as error:
                refused.append(str(error))
                continue
            print(f"{closed.name} of {each.slug} is {'' if new else 'already '}closed: {_amount(closed)}")
    if not chosen:
        print(f"Nothing to close: no tenant existed in {year}-{number:02}.")
    if refused:
        raise PreflightError(f"{len(refused)} of {len(chosen)} months stay open.", "\n".join(refused))


@month.command("reopen")
@click.argument("month_name", metavar="MONTH", type=MonthName())
@click.option("--tenant", metavar="SLUG", required=True)
@click.option("--reason", required=True, help="Why, in up to 500 characters, for the audit log.")
def reopen_month(month_name: tuple[int, int], tenant: str, reason: str) -> None:
    """Request that a tenant's last closed MONTH is reopened. A second person confirms it."""
    with _one(tenant, month_name) as found:
        from billing.months import reopening
        from tenants import audit

        asked = reopening.request(audit.shell("hearth month"), found, reason)
    print(f"{asked.name} of {tenant} stays closed until a second person confirms: {asked.reopen_reason}")


@month.command("confirm-reopening")
@click.argument("month_name", metavar="MONTH", type=MonthName())
@click.option("--tenant", metavar="SLUG", required=True)
def confirm_reopening(month_name: tuple[int, int], tenant: str) -> None:
    """Reopen a MONTH that another person requested to reopen."""
    with _one(tenant, month_name) as found:
        from billing.months import reopening
        from tenants import audit

        opened = reopening.confirm(audit.shell("hearth month"), found)
    print(f"{opened.name} of {tenant} is open. Close it again once it is right.")


@contextmanager
def _one(slug: str, month_name: tuple[int, int]) -> Iterator[Month]:
    """Yield the month of a tenant. Raises PreflightError for what the block refuses."""
    with on_database("The month is unchanged"):
        from billing.errors import NotReopened
        from billing.reports import statements
        from tenants import registry

        try:
            yield statements.Month(tenant=registry.find_tenant(slug), year=month_name[0], month=month_name[1])
        except NotReopened as error:
            raise PreflightError(f"{error}.", "") from error


def _cells(standing: Standing) -> tuple[str, ...]:
    last = standing.last
    if last is None:
        return (standing.month.tenant.slug, "open", "", "", "", "")
    asked = f"{last.reopen_requested_by}: {last.reopen_reason}" if last.reopen_requested_at else ""
    closed_at = f"{last.closed_at:%Y-%m-%d %H:%M}"
    return (standing.month.tenant.slug, standing.state, _amount(last), closed_at, last.closed_by, asked)


def _amount(closed: Any) -> str:
    from billing.pricing import amounts

    return f"{amounts.units(int(closed.amount_pico), closed.currency)} {closed.currency}"

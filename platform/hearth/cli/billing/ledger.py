"""`hearth ledger`: verify the ledger."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict

import click

from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table


@click.group(short_help="Verify the ledger.")
def ledger() -> None:
    """Verify the ledger. docs/billing/accounts-and-credit.md says what is in it."""


@ledger.command("verify")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m"]),
    help="Compare requests and closed months only from this day or month on (UTC). Without it: all that are kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify(context: click.Context, since: dt.datetime | None, as_json: bool) -> None:
    """Verify that postings balance, that usage was posted once, that credit is what is unused, and closed months.

    Nothing is changed. Exit status 1 if something differs: it says what, what it should be and what it is.
    """
    with on_database("The ledger cannot be verified"):
        from billing.pricing.amounts import units
        from reconciliation import ledger as books
        from tenants.models import Tenant

        found = books.verify(None if since is None else since.replace(tzinfo=dt.UTC))
        slugs = dict(Tenant.objects.values_list("id", "slug"))
        if as_json:
            print(json.dumps(asdict(found) | {"is_right": found.is_right}, indent=2, default=str))
        else:
            rows = [(each.kind, each.currency, units(each.amount_pico, each.currency)) for each in found.balances]
            print(table(("KIND", "CURRENCY", "BALANCE"), rows))
            for check in found.checks:
                print(f"{'differs' if check.differences else 'ok':8} {check.about}")
                for each in check.differences:
                    tenant = slugs.get(each.tenant_id, str(each.tenant_id))
                    print(f"         {tenant}, {each.subject}: {each.found} instead of {each.expected}")
            print(f"{found.postings} postings, {'nothing differs' if found.is_right else 'something differs'}.")
    if not found.is_right:
        context.exit(1)

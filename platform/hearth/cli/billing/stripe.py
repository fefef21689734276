"""`hearth stripe`: connect an issuer with Stripe, push closed months, and compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table
from hearth.cli.secret import first_line

if TYPE_CHECKING:
    from billing.models import StripeConnection, StripeInvoice  # its models need Django

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_MONTH = click.argument("month_name", metavar="MONTH", type=MonthName())
_SECRET = click.Path(exists=True, dir_okay=False, allow_dash=True)
_HEADS = ("TENANT", "MONTH", "NUMBER", "AT STRIPE", "HERE", "TOTAL", "PROBLEM")
_SHOWN = 200


@click.group(short_help="Let Stripe issue invoices, and compare with it.")
def stripe() -> None:
    """Let Stripe issue the invoices of accounts whose issuer it is. docs/billing/stripe.md says more.

    \b
    Examples:
      hearth stripe connect berlin --key-file key.txt --webhook-secret-file secret.txt
      hearth account set acme --issuer stripe
      hearth month close 2026-11 && hearth stripe push 2026-11
      hearth stripe reconcile
      hearth stripe status
    """


@stripe.command("connect")
@click.argument("issuer", required=False)
@click.option("--key-file", type=_SECRET, callback=first_line, metavar="FILE", help="Secret key; -: standard input.")
@click.option(
    "--webhook-secret-file", type=_SECRET, callback=first_line, metavar="FILE", help="Signing secret, whsec_…."
)
@click.option("--tax-rate", metavar="ID", help="Stripe's tax rate, txr_…. Empty: tax is a line of its own.")
def connect(issuer: str | None, key_file: str | None, webhook_secret_file: str | None, tax_rate: str | None) -> None:
    """Connect ISSUER, by default the default one, with its account at Stripe, or change what is given.

    Without a file the secret key is asked for. An earlier signing secret stays valid for a day.
    """
    key = key_file
    if key is None and webhook_secret_file is None and tax_rate is None:
        key = click.prompt("Secret key", hide_input=True, err=True)
    with _changing():
        from billing.stripe import connections
        from billing.stripe.connections import Wanted

        wanted = Wanted(key=key, webhook_secret=webhook_secret_file, tax_rate=tax_rate)
        found = connections.connect(_actor(), issuer, wanted)
        print(f"{found.issuer.name} is connected with {found.account_id} ({connections.mode(found)} mode).")
        print(f"Webhooks go to /api/v1/stripe/webhooks/{found.issuer.name} of the portal.")


@stripe.command("push")
@_MONTH
@click.option("--tenant", metavar="SLUG", help="Only this tenant's. Default: every tenant's whose issuer is Stripe.")
@click.option("--issuer", metavar="NAME", help="Default: the default issuer.")
def push(month_name: tuple[int, int], tenant: str | None, issuer: str | None) -> None:
    """Make the closed MONTH one invoice of Stripe for each tenant. The same again changes nothing.

    Each tenant's is made on its own: if one is refused, the others are made, and the exit status is 1.
    """
    refused, count = [], 0
    with on_database("No more invoices are pushed"):
        from billing.errors import InvoiceRefused, StripeRefused, StripeUnavailable
        from billing.reports.statements import Month
        from billing.stripe import pushing
        from tenants.registry import find_tenant

        year, number = month_name
        for each in [find_tenant(tenant)] if tenant else pushing.tenants(year, number):
            count += 1
            try:
                begun, _ = pushing.begin(_actor(), Month(tenant=each, year=year, month=number), issuer)
                done = pushing.run(_actor(), begun)
            except (InvoiceRefused, StripeRefused, StripeUnavailable) as error:
                refused.append(f"{each.slug}: {error}")
                continue
            print(f"{done.number} of {each.slug} is {done.status} at Stripe: {_money(done.total_cents, done.currency)}")
    if refused:
        raise PreflightError(f"{len(refused)} of {count} invoices are not at Stripe.", "\n".join(refused))
    if not count:
        print(f"No tenant's issuer is Stripe in {year}-{number:02}.")


@stripe.command("void")
@_MONTH
@click.option("--tenant", metavar="SLUG", required=True)
@click.option("--reason", required=True, help="Why, in up to 500 characters, for the audit log.")
def void(month_name: tuple[int, int], tenant: str, reason: str) -> None:
    """Void Stripe's invoice of MONTH, or delete its draft. Then the month can be reopened, and invoiced again."""
    with _changing():
        from billing.reports.statements import Month
        from billing.stripe import pushing
        from tenants.registry import find_tenant

        found = pushing.find(Month(tenant=find_tenant(tenant), year=month_name[0], month=month_name[1]))
        if found is None:
            raise PreflightError(f"Stripe has no invoice of {tenant} for {month_name[0]}-{month_name[1]:02}.", "")
        name = str(found)
        pushing.void(_actor(), found, reason)
    print(f"{name} is void.")


@stripe.command("reconcile")
@click.option("--issuer", metavar="NAME", help="Default: every issuer that is connected.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d", "%Y-%m"]), help="Default: 92 days ago.")
@_JSON
@click.pass_context
def reconcile(context: click.Context, issuer: str | None, since: datetime | None, as_json: bool) -> None:
    """Compare Stripe's invoices and payments with ours; one that was stopped goes on. Exit status 1 if any differ."""
    with _changing("Not compared to the end"):
        from billing.models import StripeConnection
        from billing.stripe import comparison, connections

        every = StripeConnection.objects.select_related("issuer").order_by("issuer__name")
        found = []
        for each in [connections.find(issuer)] if issuer else every:
            done = comparison.run(each, None if since is None else since.replace(tzinfo=UTC))
            findings = list(done.findings.order_by("id"))
            found += [(each.issuer.name, finding.kind, finding.text) for finding in findings]
            if not as_json:
                compared = f"{done.invoices} invoices and {done.payments} payments of Stripe were compared"
                print(f"{each.issuer.name}: {compared}, {len(findings)} things differ.")
    if as_json:
        print(json.dumps([dict(zip(("issuer", "kind", "text"), row, strict=True)) for row in found], indent=2))
    elif found:
        print(table(("ISSUER", "DIFFERS", "WHAT"), found))
    if found:
        context.exit(1)


@stripe.command("status")
@_JSON
def status(as_json: bool) -> None:
    """List the connected accounts, the invoices at Stripe, newest first, and what the last comparison found."""
    with on_database("The status cannot be read"):
        from billing.models import StripeConnection, StripeInvoice

        accounts = [_account(each) for each in StripeConnection.objects.select_related("issuer").order_by("id")]
        rows = StripeInvoice.objects.select_related("mirror").order_by("-id")[:_SHOWN]
        invoices = [_cells(each) for each in rows]
    if as_json:
        keys = [head.lower().replace(" ", "_") for head in _HEADS]
        shown = [dict(zip(keys, row, strict=True)) for row in invoices]
        print(json.dumps({"accounts": accounts, "invoices": shown}, indent=2))
        return
    if not accounts:
        print("No issuer is connected with Stripe: hearth stripe connect ISSUER.")
    for each in accounts:
        print(
            f"{each['issuer']}: {each['account']} ({each['mode']} mode, key …{each['key']}). "
            f"Last event: {each['last_event'] or 'none'}. Compared: {each['compared'] or 'never'}, "
            f"{len(each['findings'])} things differ.{' ' + each['problem'] if each['problem'] else ''}"
        )
        for text in each["findings"]:
            print(f"  {text}")
    if invoices:
        print(table(_HEADS, invoices))


def _account(connection: StripeConnection) -> dict[str, Any]:
    from billing.stripe import comparison, connections

    done, last = comparison.latest(connection, finished=True), comparison.latest(connection)
    return {
        "issuer": connection.issuer.name,
        "account": connection.account_id,
        "mode": connections.mode(connection),
        "key": connection.key_hint,
        "tax_rate": connection.tax_rate_id,
        "last_event": f"{connection.event_at:%Y-%m-%d %H:%M}" if connection.event_at else None,
        "compared": f"{done.finished_at:%Y-%m-%d %H:%M}" if done and done.finished_at else None,
        "problem": last.problem if last else "",
        "findings": [each.text for each in done.findings.order_by("id")] if done else [],
    }


def _cells(each: StripeInvoice) -> tuple[str, ...]:
    from tenants.models import Tenant

    return (
        Tenant.objects.get(id=each.tenant_id).slug,
        each.period,
        each.number,
        each.status or "nothing yet",
        each.mirror.state if each.mirror else ("ended" if each.ended_at else "not yet"),
        _money(each.total_cents, each.currency),
        each.problem,
    )


@contextmanager
def _changing(failure: str = "Nothing was changed") -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database(failure):
        from billing.errors import InvoiceRefused, StripeRefused, StripeUnavailable

        try:
            yield
        except (InvoiceRefused, StripeRefused, StripeUnavailable) as error:
            raise PreflightError(str(error), "") from error


def _actor() -> Any:
    from tenants import audit

    return audit.shell("hearth stripe")


def _money(cents: int, currency: str) -> str:
    from billing.invoices.documents import money_text

    return money_text.with_currency(cents, currency)

"""`hearth dunning`: what is done about invoices that are not paid in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.dunning.cases import Case  # its models need Django

_HEADS = ("INVOICE", "TENANT", "OPEN", "DUE", "DAYS", "LAST STEP", "NEXT", "ON", "HELD", "REFUSED SINCE")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_TENANT = click.option("--tenant", metavar="SLUG")
_REASON = click.option("--reason", required=True, help="Why, in up to 500 characters.")


@click.group(short_help="Remind of invoices that are not paid, up to a suspension.")
def dunning() -> None:
    """Remind of invoices that are not paid, up to a suspension. docs/billing/dunning.md says more.

    \b
    Examples:
      hearth dunning status
      hearth dunning policy --suspension 30
      hearth dunning hold INV-000001 --reason "They dispute March"
      hearth dunning grace acme 2026-12-24 --reason "Promised to pay by then"
    """


@dunning.command("status")
@_TENANT
@_JSON
def status(tenant: str | None, as_json: bool) -> None:
    """List the invoices that are late: what was done, what comes next and when, as the last run found it."""
    with on_database("Dunning cannot be read"):
        from django.utils import timezone

        from billing.dunning import cases, holds
        from tenants.registry import find_tenant

        chosen = find_tenant(tenant) if tenant else None
        rows = [_cells(each) for each in cases.read(timezone.now(), tenant=chosen)]
        held = [
            (str(each.id), each.invoice.number if each.invoice else "all", each.reason, _day(each.until))
            for each in holds.of_all(chosen.id if chosen else None)
        ]
        last = cases.last_run()
        ran = None if last is None or last.finished_at is None else f"{last.finished_at:%Y-%m-%d %H:%M} UTC"
    if as_json:
        heads = [each.lower().replace(" ", "_") for each in _HEADS]
        found = {"last_run": ran, "invoices": [dict(zip(heads, row, strict=True)) for row in rows]}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    print(table(_HEADS, rows) if rows else "No invoice is late.")
    if held:
        print(f"\n{table(('HOLD', 'INVOICE', 'REASON', 'UNTIL'), held)}")
    print(f"\nLast run: {ran or 'none yet'}.")


@dunning.command("run")
def run() -> None:
    """Take the steps that are due now, as beat does every ten minutes."""
    with on_database("Dunning did not run through"):
        from django.utils import timezone

        from billing.dunning import run as running

        done = running.run(timezone.now())
    print(f"{done.steps} steps taken.")
    if done.failures:
        raise PreflightError(f"{done.failures} invoices could not be looked at.", "The log says why.")


@dunning.command("policy")
@click.option("--issuer", metavar="NAME", help="Default: the default issuer.")
@_TENANT
@click.option("--reminder", metavar="DAYS")
@click.option("--second-reminder", metavar="DAYS")
@click.option("--notice", metavar="DAYS")
@click.option("--suspension", metavar="DAYS")
@click.option(
    "--least-open",
    "least",
    type=int,
    metavar="CENTS",
    help="An invoice of which less is open is left alone.",
)
@click.option("--remove", is_flag=True, help="Remove the tenant's own policy, so that it has its issuer's.")
def policy(issuer: str | None, tenant: str | None, least: int | None, remove: bool, **given: str | None) -> None:
    """Show or set an issuer's policy, or a tenant's own: days after an invoice is due, or `off`."""
    changes: dict[str, Any] = {f"{name}_days": _days(name, text) for name, text in given.items() if text is not None}
    changes |= {} if least is None else {"least_open_cents": least}
    if remove and (tenant is None or changes):
        raise PreflightError("--remove is about the policy of one tenant.", "Give --tenant, and nothing to set.")
    with _changing():
        from billing.dunning import policy as policies
        from tenants import audit
        from tenants.registry import find_tenant

        actor, chosen = audit.shell("hearth dunning"), find_tenant(tenant) if tenant else None
        if chosen is not None and remove:
            policies.remove(actor, tenant=chosen)
        if changes:
            policies.set_policy(actor, changes, issuer=issuer, tenant=chosen)
        own = policies.of_tenant(chosen) if chosen is not None else None
        found = own or policies.of_issuer(issuer)
    if chosen is not None and own is None:
        print(f"{chosen.slug} has no policy of its own; its issuer's holds.")
    for name, value in asdict(found).items():
        text = "off" if value is None else f"{value} {'cents' if name.endswith('cents') else 'days after it is due'}"
        print(f"{name.removesuffix('_days').removesuffix('_cents').replace('_', ' '):16} {text}")


@dunning.command("hold")
@click.argument("number", required=False)
@_TENANT
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Its last day. Default: until somebody ends it.")
@_REASON
def hold(number: str | None, tenant: str | None, until: datetime | None, reason: str) -> None:
    """Do nothing about the invoice NUMBER, or with --tenant about all of a tenant's, such as in a dispute."""
    if (number is None) == (tenant is None):
        raise PreflightError("One of an invoice and a tenant is held.", "Give the number of an invoice, or --tenant.")
    _hold(number, tenant, None if until is None else until.date(), reason)


@dunning.command("grace")
@click.argument("tenant")
@click.argument("until", type=click.DateTime(["%Y-%m-%d"]))
@_REASON
def grace(tenant: str, until: datetime, reason: str) -> None:
    """Serve TENANT until the end of the day UNTIL, and do nothing about its invoices until then."""
    _hold(None, tenant, until.date(), reason)


@dunning.command("end-hold")
@click.argument("hold_id", metavar="HOLD", type=click.UUID)
def end_hold(hold_id: UUID) -> None:
    """End a hold or a grace: what is due is done at the next run, and a suspension comes back at once."""
    with _changing():
        from billing.dunning import holding
        from tenants import audit

        holding.end(audit.shell("hearth dunning"), hold_id)
    print("The hold has ended.")


def _hold(number: str | None, slug: str | None, until: date | None, reason: str) -> None:
    with _changing():
        from billing.dunning import holding
        from billing.invoices import registry
        from tenants import audit
        from tenants.models import Tenant
        from tenants.registry import find_tenant

        invoice = registry.find(number) if number is not None else None
        tenant = Tenant.objects.get(id=invoice.tenant_id) if invoice is not None else find_tenant(slug or "")
        row = holding.hold(audit.shell("hearth dunning"), tenant, reason, invoice=invoice, until=until)
    what = invoice.number if invoice is not None else f"All invoices of {tenant.slug}"
    print(f"{what}: held {f'until {row.until}' if row.until else 'until you end it'}. The hold is {row.id}.")


@contextmanager
def _changing() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database("Nothing was changed"):
        from billing.errors import BadDunning, InvoiceRefused

        try:
            yield
        except (BadDunning, InvoiceRefused) as error:
            raise PreflightError(str(error), "") from error


def _days(name: str, text: str) -> int | None:
    if text == "off":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise PreflightError(f"--{name.replace('_', '-')}: {text!r} is no number of days.", "Use 1 to 365, or `off`.")
    return int(text)


def _cells(case: Case) -> tuple[str, ...]:
    from billing.pricing.amounts import of_minor

    amount = f"{of_minor(case.open_cents, case.invoice.currency)} {case.invoice.currency}"
    held = "" if case.hold is None else f"{case.hold.reason}{f' (until {case.hold.until})' if case.hold.until else ''}"
    since = "" if case.suspends_since is None else f"{case.suspends_since:%Y-%m-%d %H:%M}"
    return (
        case.invoice.number, case.tenant.slug, amount, str(case.invoice.due_on), str(case.days_late),
        case.step.replace("_", " "), case.next_kind.replace("_", " "), _day(case.next_on), held, since,
    )  # fmt: skip


def _day(given: date | None) -> str:
    return "" if given is None else given.isoformat()

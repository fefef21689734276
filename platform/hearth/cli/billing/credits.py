"""`hearth credit`: what tenants have paid in advance or were given."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

_AMOUNT = re.compile(r"[0-9]{1,8}(\.[0-9]{1,12})?")
_PICO = 10**12


class Amount(click.ParamType[int]):
    """An amount above zero in units of the tenant's currency, read as pico-units."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the pico-units."""
        if not isinstance(value, str) or not _AMOUNT.fullmatch(value) or not Decimal(value):
            self.fail(f"{value!r} is no amount: use one above 0, such as 25 or 0.50.", param, ctx)
        return int(Decimal(value) * _PICO)


_KEY = click.option(
    "--key",
    default=lambda: str(uuid.uuid4()),
    show_default="a new one",
    help="Your name for this change, such as the number of a payment. The same again changes nothing.",
)
_REASON = click.option("--reason", default="", help="Why, in up to 500 characters.")
_WHY = click.option("--reason", required=True, help="Why, in up to 500 characters.")
_REFERENCE = click.option(
    "--reference", default="", help="What it is about outside Hearth, such as a payment's number."
)
_ENTRY = click.option("--refers-to", type=uuid.UUID, metavar="ENTRY", help="The entry that it is about.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(short_help="Show and change what tenants have paid in advance or were given.")
def credit() -> None:
    """Show and change a tenant's credit: prepaid, promotions, refunds, corrections.

    Each change is an entry in the ledger, which another one can take back. Amounts above HEARTH_CREDIT_APPROVAL_ABOVE
    wait for a second person. docs/billing/accounts-and-credit.md says more.

    \b
    Examples:
      hearth credit add acme 100 --key payment-7
      hearth credit promote acme 25 --expires 2027-06-30
      hearth credit refund acme 40 --reason "they leave"
    """


@credit.command("show")
@click.argument("tenant")
@_JSON
def show(tenant: str, as_json: bool) -> None:
    """Show the credit of TENANT, and what waits for a second person."""
    with on_database("The credit cannot be read"):
        from billing.accounts import balance, credits
        from billing.pricing.amounts import units
        from tenants.registry import find_tenant

        found = find_tenant(tenant)
        has = balance.of(found.id)
        pending = [_pending_row(each, tenant) for each in credits.pending(found)]
        rows = [(units(has.prepaid_pico, found.currency), "prepaid")]
        rows += [
            (units(each.left_pico, found.currency), f"until {each.expires_at:%Y-%m-%d %H:%M} UTC")
            for each in has.promotions
        ]
        if as_json:
            parts = [{"left": amount, "of": of} for amount, of in rows]
            total = {"tenant": tenant, "currency": found.currency, "total": units(has.total_pico, found.currency)}
            print(json.dumps({**total, "parts": parts, "pending": pending}, indent=2))
            return
        print(f"{units(has.total_pico, found.currency)} {found.currency}")
        print(table(("LEFT", "OF"), rows))
        _print_pending(pending)


@credit.command("list")
@click.argument("tenant")
@_JSON
def list_entries(tenant: str, as_json: bool) -> None:
    """List all entries of TENANT, the newest first."""
    with on_database("The entries cannot be read"):
        from billing.accounts import credits
        from billing.pricing.amounts import units
        from tenants.registry import find_tenant

        rows = [
            (
                f"{each.created_at:%Y-%m-%d %H:%M}",
                each.kind,
                units(int(each.amount_pico), each.currency),
                each.currency,
                each.closing.name if each.closing else "",
                each.request.reason if each.request else "",
                str(each.id),
            )
            for each in credits.history(find_tenant(tenant)).iterator(chunk_size=500)
        ]
    heads = ("AT", "KIND", "AMOUNT", "CURRENCY", "MONTH", "REASON", "ENTRY")
    if as_json:
        print(json.dumps([dict(zip(map(str.lower, heads), row, strict=True)) for row in rows], indent=2))
        return
    print(table(heads, rows) if rows else f"{tenant} has no entries of credit.")


@credit.command("add")
@click.argument("tenant")
@click.argument("amount", type=Amount())
@_KEY
@_REFERENCE
@_REASON
def add(tenant: str, amount: int, key: str, **texts: str) -> None:
    """Record AMOUNT that TENANT has paid in advance."""
    _submit(tenant, key, kind="top_up", amount_pico=amount, **texts)


@credit.command("promote")
@click.argument("tenant")
@click.argument("amount", type=Amount())
@click.option("--expires", required=True, type=click.DateTime(["%Y-%m-%d"]), help="Last day (UTC), as YYYY-MM-DD.")
@_KEY
@_REFERENCE
@_REASON
def promote(tenant: str, amount: int, expires: datetime, key: str, **texts: str) -> None:
    """Give TENANT a promotion of AMOUNT. What is unused after its last day is taken back."""
    behind = expires.replace(tzinfo=UTC) + timedelta(days=1)
    _submit(tenant, key, kind="promotion", amount_pico=amount, expires_at=behind, **texts)


@credit.command("refund")
@click.argument("tenant")
@click.argument("amount", type=Amount())
@_KEY
@_ENTRY
@_REFERENCE
@_WHY
def refund(tenant: str, amount: int, key: str, **given: Any) -> None:
    """Record AMOUNT of prepaid credit that was paid back to TENANT."""
    _submit(tenant, key, kind="refund", amount_pico=amount, **given)


@credit.command("return")
@click.argument("tenant")
@click.argument("amount", type=Amount())
@click.option("--invoice", default="", help="Number or id of the invoice: then its tax goes back by its share.")
@_KEY
@_REFERENCE
@_WHY
def return_money(tenant: str, amount: int, key: str, **given: Any) -> None:
    """Record AMOUNT of a paid invoice that went back to TENANT, as by a dispute. Its credit stays as it is."""
    _submit(tenant, key, kind="return", amount_pico=amount, **given)


@credit.command("correct")
@click.argument("tenant")
@click.option("--give", type=Amount(), help="What the tenant gets.")
@click.option("--take", type=Amount(), help="What is taken from it.")
@_KEY
@_ENTRY
@_REFERENCE
@_WHY
def correct(tenant: str, give: int | None, take: int | None, key: str, **given: Any) -> None:
    """Correct the prepaid credit of TENANT, for example for an outage."""
    if (give is None) == (take is None):
        raise click.UsageError("Give --give or --take.")
    _submit(tenant, key, kind="correction", amount_pico=give if give is not None else -(take or 0), **given)


@credit.command("reverse")
@click.argument("tenant")
@click.argument("entry", type=uuid.UUID)
@_KEY
@_WHY
def reverse(tenant: str, entry: uuid.UUID, key: str, reason: str) -> None:
    """Take back an ENTRY of TENANT by another one. `hearth credit list` shows the entries."""
    _submit(tenant, key, kind="reversal", refers_to=entry, reason=reason)


@credit.command("pending")
@_JSON
def pending(as_json: bool) -> None:
    """List what waits for a second person."""
    with on_database("The requests cannot be read"):
        from billing.accounts import credits
        from tenants.models import Tenant

        slugs = dict(Tenant.objects.values_list("id", "slug"))
        rows = [_pending_row(each, slugs[each.tenant_id]) for each in credits.pending()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    _print_pending(rows)
    if not rows:
        print("Nothing waits for a second person.")


@credit.command("approve")
@click.argument("tenant")
@click.argument("request", type=uuid.UUID)
def approve(tenant: str, request: uuid.UUID) -> None:
    """Post a REQUEST that another person made for TENANT."""
    _decide(tenant, request, "approve")


@credit.command("reject")
@click.argument("tenant")
@click.argument("request", type=uuid.UUID)
def reject(tenant: str, request: uuid.UUID) -> None:
    """Drop a REQUEST for TENANT that waits for approval."""
    _decide(tenant, request, "reject")


def _submit(tenant: str, key: str, invoice: str = "", **wanted: Any) -> None:
    with _changing():
        from billing.accounts import credits
        from billing.accounts.credits import NewCredit
        from billing.invoices import registry
        from tenants import audit
        from tenants.registry import find_tenant

        actor, found = audit.shell("hearth credit"), find_tenant(tenant)
        of = registry.find(invoice, found.id).id if invoice else None
        request, is_new = credits.submit(actor, found, key, NewCredit(invoice=of, **wanted))
        if request.state == "pending":
            print(f"It waits for a second person: hearth credit approve {tenant} {request.id}")
            return
        print(f"Entry {request.entry.id}" if is_new else f"Nothing was changed: {key} was posted before.")
        _print_total(tenant)


def _decide(tenant: str, request: uuid.UUID, verb: str) -> None:
    with _changing():
        from billing.accounts import credits
        from billing.invoices import crediting
        from tenants import audit
        from tenants.registry import find_tenant

        decide: Callable[..., Any] = crediting.approve if verb == "approve" else credits.reject
        decide(audit.shell("hearth credit"), find_tenant(tenant), request)
        _print_total(tenant)


def _print_total(tenant: str) -> None:
    from billing.accounts import balance
    from billing.pricing.amounts import units
    from tenants.registry import find_tenant

    found = find_tenant(tenant)
    print(f"{tenant} has {units(balance.of(found.id).total_pico, found.currency)} {found.currency} of credit.")


def _pending_row(request: Any, tenant: str) -> dict[str, str]:
    from billing.pricing.amounts import of_minor, units

    lines = [f"{each['text']} {of_minor(each['net_cents'], request.currency)}" for each in request.lines or ()]
    return {
        "request": str(request.id),
        "tenant": tenant,
        "kind": request.kind,
        "amount": f"{units(int(request.amount_pico), request.currency)} {request.currency}",
        "tax": units(int(request.tax_pico), request.currency),
        "invoice": request.invoice.number if request.invoice else "",
        "lines": "; ".join(lines),
        "reason": request.reason,
        "by": request.requested_by,
    }


def _print_pending(rows: list[dict[str, str]]) -> None:
    if rows:
        print(table([head.upper() for head in rows[0]], [tuple(row.values()) for row in rows]))


@contextmanager
def _changing() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database("Nothing was changed"):
        from billing.errors import BadCredit, CreditRefused, InvoiceRefused

        try:
            yield
        except (BadCredit, CreditRefused, InvoiceRefused) as error:
            raise PreflightError(str(error), "") from error

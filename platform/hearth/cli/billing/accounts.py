"""`hearth account`: to whom a tenant's invoices are addressed, and by which terms it pays."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from hearth.cli.on_database import on_database

if TYPE_CHECKING:
    from billing.accounts.account import Account  # its models need Django

_PERCENT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,2})?")


class TaxRate(click.ParamType[int]):
    """A rate in percent, read as basis points."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the basis points."""
        if not isinstance(value, str) or not _PERCENT.fullmatch(value) or Decimal(value) > 100:
            self.fail(f"{value!r} is no rate: use 0 to 100 with at most two decimals.", param, ctx)
        return int(Decimal(value) * 100)


@click.group(short_help="Show and set to whom a tenant's invoices are addressed.")
def account() -> None:
    """Show and set a tenant's billing account: address, tax, terms of payment, currency.

    docs/billing/accounts-and-credit.md says more.

    \b
    Examples:
      hearth account show acme
      hearth account set acme --legal-name "Acme GmbH" --country DE --tax-rate 19
    """


@account.command("show")
@click.argument("tenant")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(tenant: str, as_json: bool) -> None:
    """Show the billing account of TENANT."""
    with on_database("The account cannot be read"):
        from billing.accounts import account as accounts
        from tenants.registry import find_tenant

        found = accounts.of(find_tenant(tenant))
    if as_json:
        print(json.dumps({"tenant": tenant, **_document(found)}, indent=2))
        return
    print("\n".join(f"{head:18} {text}".rstrip() for head, text in _lines(found)))


@account.command("set")
@click.argument("tenant")
@click.option("--legal-name")
@click.option("--address-line", "address_lines", multiple=True, help="Repeatable, at most four; replaces all lines.")
@click.option("--city")
@click.option("--postcode")
@click.option("--country", help="ISO 3166-1, two letters.")
@click.option("--tax-id", help="Such as a VAT number.")
@click.option("--tax-rate", "tax_rate_basis_points", type=TaxRate(), help="In percent, at most two decimals.")
@click.option("--tax-note", help="Why the rate is what it is; printed on invoices.")
@click.option("--payment-terms", "payment_terms_days", type=int, metavar="DAYS", help="0 to 365.")
@click.option("--email", "billing_emails", multiple=True, help="Repeatable, at most ten; replaces all addresses.")
@click.option(
    "--mode",
    type=click.Choice(["postpaid", "prepaid"]),
    help="prepaid: requests may only spend what the tenant's credit covers.",
)
@click.option("--issuer", type=click.Choice(["hearth", "stripe"]), help="Who writes the invoices.")
@click.option(
    "--charge-automatically/--no-charge-automatically",
    default=None,
    help="Whether Stripe charges its invoices to the payment method that the tenant saved.",
)
@click.option("--currency", help="ISO 4217, three letters. Fixed once something was charged.")
def set_account(tenant: str, currency: str | None, mode: str | None, **given: Any) -> None:
    """Set details of the billing account of TENANT. What is not given stays; an empty text removes a detail."""
    changes = {name: value for name, value in given.items() if value is not None and value != ()}
    if not changes and currency is None and mode is None:
        raise click.UsageError("Give at least one option.")
    with on_database("Nothing was changed"):
        from billing.accounts import account as accounts
        from tenants import audit
        from tenants.registry import find_tenant

        actor = audit.shell("hearth account")
        found = accounts.change(actor, find_tenant(tenant), currency=currency, mode=mode, **changes)
        notice = "" if currency is None else accounts.price_notice(find_tenant(tenant))
    print("\n".join(f"{head:18} {text}".rstrip() for head, text in _lines(found)))
    if notice:
        print(notice)


@account.command("confirm-email")
@click.argument("tenant")
@click.argument("address")
def confirm_email(tenant: str, address: str) -> None:
    """Have e-mails about invoices sent to ADDRESS, one of TENANT's account that its owner has not confirmed."""
    with on_database("Nothing was changed"):
        from billing.accounts import mail_addresses
        from tenants import audit
        from tenants.registry import find_tenant

        mail_addresses.confirm(audit.shell("hearth account"), find_tenant(tenant), address)
    print(f"{address} gets e-mails about the invoices of {tenant}.")


def _document(found: Account) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "currency": found.currency,
        "currency_is_fixed": found.currency_is_fixed,
        "mode": found.mode,
    }
    fixed["unconfirmed_emails"] = list(found.unconfirmed_emails)
    return {**fixed, **asdict(found.details)}


def _lines(found: Account) -> list[tuple[str, str]]:
    of = found.details
    place = " ".join(filter(None, (of.postcode, of.city)))
    address = ", ".join(filter(None, (*of.address_lines, place, of.country)))
    rate = f"{Decimal(of.tax_rate_basis_points) / 100:.2f} %"
    return [
        ("Legal name", of.legal_name or "unknown"),
        ("Address", address or "unknown"),
        ("Tax id", of.tax_id or "none"),
        ("Tax", f"{rate}, {of.tax_note}" if of.tax_note else rate),
        ("Payment terms", f"{of.payment_terms_days} days"),
        ("E-mails", ", ".join(of.billing_emails) or "none"),
        *([("Not confirmed", ", ".join(found.unconfirmed_emails))] if found.unconfirmed_emails else []),
        ("Invoices by", of.issuer),
        *([("Charged", "automatically, by Stripe")] if of.charge_automatically else []),
        ("Pays", "in advance" if found.mode == "prepaid" else "afterwards"),
        ("Currency", f"{found.currency}, fixed" if found.currency_is_fixed else found.currency),
    ]

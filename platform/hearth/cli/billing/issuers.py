"""`hearth issuer`: the legal entity on invoices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

#: Options of ``set`` that are text, with what --help says of each.
_TEXTS = {
    "legal_name": "The name on invoices.",
    "postcode": "",
    "city": "",
    "country": "Two letters, ISO 3166-1.",
    "tax_id": "VAT id, or another tax id.",
    "registration": "The company's registration, such as HRB 12345 B.",
    "email": "For questions about invoices.",
    "iban": "Where invoices are paid.",
    "bic": "",
    "bank_name": "",
    "timezone": "IANA name, of the dates on invoices. Default: UTC.",
    "invoice_prefix": "Of invoice numbers. Default: INV-.",
    "credit_note_prefix": "Of credit notes' numbers. Default: CN-.",
    "tax_note": "A sentence on each invoice, such as why there is no tax.",
}


@click.group(short_help="Set the legal entity on invoices.")
def issuer() -> None:
    """Set the legal entity on invoices. The first one is the default of all invoices.

    \b
    Example:
      hearth issuer set berlin --legal-name "Example GmbH" --address "Lindenstr. 12" --postcode 10969 --city Berlin \\
        --country DE --tax-id DE123456789 --iban DE89370400440532013000 --tax-percent 19
    """


def _text_options(command: Any) -> Any:
    for name, words in reversed(_TEXTS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, help=words or None)(command)
    return command


@issuer.command("set")
@click.argument("name")
@_text_options
@click.option("--address", "address_lines", multiple=True, help="A line of the address. Up to three times.")
@click.option("--tax-percent", type=click.FloatRange(0, 100), help="The default rate, such as 19.")
@click.option("--default", "make_default", is_flag=True, help="Make it the default of all invoices.")
def set_issuer(
    name: str,
    address_lines: tuple[str, ...],
    tax_percent: float | None,
    make_default: bool,
    **texts: str | None,
) -> None:
    """Change an issuer, or add one. What is not given stays as it is; invoices that were made do too."""
    values: dict[str, Any] = {field: text for field, text in texts.items() if text is not None}
    if address_lines:
        values["address_lines"] = address_lines
    if tax_percent is not None:
        values["tax_rate_bp"] = round(tax_percent * 100)
    with _changing():
        from billing.invoices import issuers
        from tenants import audit

        found = issuers.set_issuer(audit.shell("hearth issuer"), name, values, make_default=make_default)
    print(f"{found.name}: {found.legal_name}, {found.city}, {found.country}. Next invoice: {_next(found)}.")


@issuer.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_issuers(as_json: bool) -> None:
    """List the issuers and their next numbers."""
    with on_database("The issuers cannot be read"):
        from billing.models import Issuer

        rows = [
            (each.name, each.legal_name, each.country, _next(each), "yes" if each.is_default else "")
            for each in Issuer.objects.order_by("name")
        ]
    heads = ("NAME", "LEGAL NAME", "COUNTRY", "NEXT INVOICE", "DEFAULT")
    if as_json:
        keys = [head.lower().replace(" ", "_") for head in heads]
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    print(table(heads, rows) if rows else "There is no issuer: hearth issuer set NAME adds one.")


def _next(issuer: Any) -> str:
    from billing.invoices import issuers

    return issuers.next_invoice(issuer)


@contextmanager
def _changing() -> Iterator[None]:
    """Run the block with the database. Raises PreflightError for what is refused."""
    with on_database("Nothing was changed"):
        from billing.errors import BadIssuer

        try:
            yield
        except BadIssuer as error:
            raise PreflightError(f"{error}.", "") from error

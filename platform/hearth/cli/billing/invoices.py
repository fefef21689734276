"""`hearth invoice`: draft, finalise, send, pay and void invoices, and download their documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.month_name import MonthName
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.models import Invoice  # its models need Django

_KINDS = ("pdf", "html", "xml", "csv", "json")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_OUT = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Default: a file named as the number."
)
_HEADS = ("NUMBER", "TENANT", "MONTH", "STATE", "TOTAL", "OPEN", "ISSUED", "DUE")
_MONTH = click.argument("month_name", metavar="MONTH", type=MonthName())


@click.group(short_help="Draft, finalise, send, pay and void invoices.")
def invoice() -> None:
    """Draft, finalise, send, pay and void invoices. docs/billing/invoices.md says more.

    \b
    Examples:
      hearth invoice draft 2026-11 --tenant acme
      hearth month close 2026-11 && hearth invoice finalize 2026-11
      hearth invoice download INV-000001 --kind pdf
      hearth invoice pay INV-000001 --reference "Wire 4711" --on 2026-12-14
    """


@invoice.command("draft")
@_MONTH
@click.option("--tenant", metavar="SLUG", required=True)
@click.option("--issuer", metavar="NAME", help="Default: the default issuer.")
@click.option("--kind", type=click.Choice(_KINDS), default="pdf", show_default=True)
@_OUT
def draft(month_name: tuple[int, int], tenant: str, issuer: str | None, kind: str, output: Path | None) -> None:
    """Write what the invoice of MONTH would say now. Nothing is changed."""
    with _changing("No draft was written"):
        from django.utils import timezone

        from billing.invoices import drafting, issuers
        from billing.invoices.documents import render
        from billing.reports.statements import Month
        from tenants.registry import find_tenant

        month = Month(tenant=find_tenant(tenant), year=month_name[0], month=month_name[1])
        content = drafting.draft(month, issuers.find(issuer), timezone.now())
        data = render.draft_document(content, render.Kind(kind))
    _write(data, output or Path(f"draft-{tenant}-{month.name}.{kind}"))


@invoice.command("finalize")
@_MONTH
@click.option("--tenant", metavar="SLUG", help="Only this tenant's. Default: every tenant's with a closed month.")
@click.option("--issuer", metavar="NAME", help="Default: the default issuer.")
def finalize(month_name: tuple[int, int], tenant: str | None, issuer: str | None) -> None:
    """Make the invoices of MONTH final: each gets a number and its documents. A final invoice stays as it is.

    Each tenant's invoice is made on its own: if one is refused, the others are made, and the exit status is 1.
    """
    refused = []
    with on_database("No more invoices are made"):
        from billing.errors import InvoiceRefused
        from billing.invoices import finalizing
        from billing.months import overview
        from billing.reports.statements import Month
        from tenants import audit
        from tenants.registry import find_tenant

        year, number = month_name
        chosen = [find_tenant(tenant)] if tenant else overview.tenants(year, number)
        for each in chosen:
            month = Month(tenant=each, year=year, month=number)
            try:
                with _issuer_found():
                    found, new = finalizing.finalize(audit.shell("hearth invoice"), month, issuer=issuer)
            except InvoiceRefused as error:
                refused.append(str(error))
                continue
            print(f"{found.number} of {each.slug} is {'' if new else 'already '}{found.state}: {_total(found)}")
    if refused:
        raise PreflightError(f"{len(refused)} of {len(chosen)} tenants get no invoice.", "\n".join(refused))


@invoice.command("mirror")
@_MONTH
@click.option("--tenant", metavar="SLUG", required=True)
@click.option("--number", required=True, help="The other system's number.")
@click.option("--external-id", required=True, help="The other system's id.")
@click.option("--total", required=True, metavar="AMOUNT", help="With tax, such as 12.50.")
@click.option("--tax", default="0", metavar="AMOUNT", show_default=True)
@click.option("--issued-on", type=click.DateTime(["%Y-%m-%d"]), required=True)
@click.option("--due-on", type=click.DateTime(["%Y-%m-%d"]), required=True)
def mirror(month_name: tuple[int, int], tenant: str, issued_on: datetime, due_on: datetime, **texts: str) -> None:
    """Keep the invoice of MONTH that another system issued, for a tenant whose account says so.

    It gets no number and no documents of Hearth. Its net amount must be what the closed month's lines sum to.
    """
    with _changing():
        from billing.invoices import mirroring
        from billing.reports.statements import Month
        from tenants.registry import find_tenant

        month = Month(tenant=find_tenant(tenant), year=month_name[0], month=month_name[1])
        currency = month.tenant.currency
        total, tax = _cents("--total", texts["total"], currency), _cents("--tax", texts["tax"], currency)
        external = mirroring.External(
            external_id=texts["external_id"],
            number=texts["number"],
            tax_cents=tax,
            total_cents=total,
            issued_on=issued_on.date(),
            due_on=due_on.date(),
        )
        found, new = mirroring.record(_actor(), month, external)
    print(f"{found.number} of {tenant} is {'kept' if new else 'kept already'}: {_total(found)}")


@invoice.command("list")
@click.option("--tenant", metavar="SLUG", help="Only this tenant's.")
@click.option("--month", "month_name", type=MonthName(), help="Only of this month, as YYYY-MM.")
@_JSON
def list_invoices(tenant: str | None, month_name: tuple[int, int] | None, as_json: bool) -> None:
    """List invoices, the newest first."""
    with on_database("The invoices cannot be read"):
        from billing.models import Invoice
        from tenants.registry import find_tenant

        rows = Invoice.objects.order_by("-id")
        if tenant is not None:
            rows = rows.filter(tenant_id=find_tenant(tenant).id)
        if month_name is not None:
            rows = rows.filter(year=month_name[0], month=month_name[1])
        cells = [_cells(each) for each in rows]
    if as_json:
        print(json.dumps([dict(zip(map(str.lower, _HEADS), row, strict=True)) for row in cells], indent=2))
        return
    print(table(_HEADS, cells) if cells else "There is no such invoice.")


@invoice.command("show")
@click.argument("number")
@_JSON
def show(number: str, as_json: bool) -> None:
    """Show what the invoice NUMBER says, its payments and its documents."""
    with _changing("The invoice cannot be read"):
        from billing.invoices import registry

        found = registry.find(number)
        documents = list(found.documents.order_by("kind").values_list("kind", "size_bytes", "sha256"))
        lines = [
            (each.description, _money(each.amount_cents, found.currency)) for each in found.lines.order_by("position")
        ]
        payments = [
            (each.paid_on.isoformat(), _money(each.amount_cents, found.currency), each.reference)
            for each in found.payments.order_by("id")
        ]
        notes = [
            (each.number, _money(each.total_cents, found.currency), each.issued_on.isoformat())
            for each in found.credit_notes.filter(is_partial=True).order_by("id")
        ]
        cells = _cells(found)
    if as_json:
        extra = {
            "state": found.state,
            "documents": [dict(zip(("kind", "size_bytes", "sha256"), each, strict=True)) for each in documents],
        }
        print(json.dumps(found.document | extra, indent=2, ensure_ascii=False))
        return
    print(table(_HEADS, [cells]))
    print(table(("LINE", f"AMOUNT {found.currency}"), lines))
    if payments:
        print(table(("PAID", "AMOUNT", "REFERENCE"), payments))
    if notes:
        print(table(("CREDIT NOTE", "AMOUNT", "DATE"), notes))
    print(table(("DOCUMENT", "BYTES", "SHA-256"), [(kind, str(size), digest) for kind, size, digest in documents]))


@invoice.command("send")
@click.argument("number")
def send(number: str) -> None:
    """Send the invoice NUMBER by e-mail, to the billing addresses, owners and billing members."""
    with _changing() as steps:
        found = steps.send(_actor(), _find(number))
    print(f"{found.number} is {found.state}.")


@invoice.command("pay")
@click.argument("number")
@click.option("--reference", required=True, help="What the bank statement says. The same one again changes nothing.")
@click.option("--on", "paid_on", type=click.DateTime(["%Y-%m-%d"]), required=True, help="The date of the payment.")
@click.option("--amount", metavar="AMOUNT", help="Such as 12.50. Default: all that is open.")
def pay(number: str, reference: str, paid_on: datetime, amount: str | None) -> None:
    """Record a payment of the invoice NUMBER."""
    with _changing() as steps:
        found = _find(number)
        cents = None if amount is None else _cents("--amount", amount, found.currency)
        payment, new = steps.pay(_actor(), found, reference=reference, paid_on=paid_on.date(), amount_cents=cents)
        found.refresh_from_db()
        rest = _open(found)
    done = "Recorded" if new else "Recorded already"
    paid = _money(payment.amount_cents, found.currency)
    print(f"{done}: {paid} {found.currency} for {found.number}. Open: {rest} {found.currency}.")


@invoice.command("unpay")
@click.argument("number")
@click.option("--reference", required=True, help="That of the payment. `hearth invoice show` shows it.")
@click.option("--reason", required=True, help="Why, in up to 500 characters.")
def unpay(number: str, reference: str, reason: str) -> None:
    """Take back a payment of the invoice NUMBER that did not arrive, or went back: that much is open again."""
    with _changing() as steps:
        found = steps.undo_recorded(_actor(), _find(number), reference, reason)
        rest = _open(found)
    print(f"{reference} pays nothing of {found.number}. Open: {rest} {found.currency}.")


@invoice.command("void")
@click.argument("number")
@click.option("--reason", required=True, help="Why, in up to 500 characters. It is on the credit note.")
def void(number: str, reason: str) -> None:
    """Void the invoice NUMBER with a credit note. Its month can then be reopened, and gets another invoice."""
    with _changing() as steps:
        note = steps.void(_actor(), _find(number), reason)
    print(f"{number} is void{f', taken back by {note.number}' if note else ''}.")


@invoice.command("credit")
@click.argument("number")
@click.option("--amount", metavar="AMOUNT", help="Without tax, such as 12.50. Its line says “Credit for NUMBER”.")
@click.option("--line", "lines", type=(str, str), multiple=True, metavar="TEXT AMOUNT", help="A line. May be repeated.")
@click.option("--rest", is_flag=True, help="All that is left of it.")
@click.option("--reason", required=True, help="Why, in up to 500 characters. It is on the credit note.")
@click.option("--key", required=True, help="Your name for this credit note. The same one again changes nothing.")
def credit(
    number: str, amount: str | None, lines: tuple[tuple[str, str], ...], rest: bool, reason: str, key: str
) -> None:
    """Credit a part of the invoice NUMBER, by a credit note with its tax.

    What is still open is less by it; what was paid already becomes credit. Large amounts wait for a second
    person.

    \b
    Example:
      hearth invoice credit INV-000001 --line "3 hours without tiny-chat" 12.50 --reason "SLA" --key sla-2026-11
    """
    if sum((amount is not None, bool(lines), rest)) != 1:
        raise click.UsageError("Give one of --amount, --line and --rest.")
    with _changing():
        from billing.errors import BadCredit, CreditRefused
        from billing.invoices import crediting
        from tenants.models import Tenant

        found = _find(number)
        given = [(crediting.text_of_part(found), amount)] if amount is not None else lines
        chosen = [crediting.Line(text=text, net_cents=_cents("AMOUNT", cents, found.currency)) for text, cents in given]
        try:
            request, is_new = crediting.submit(_actor(), found, key, reason, None if rest else chosen)
        except (BadCredit, CreditRefused) as error:
            raise PreflightError(str(error), "") from error
        if request.state == "pending":
            slug = Tenant.objects.get(id=found.tenant_id).slug
            print(f"It waits for a second person: hearth credit approve {slug} {request.id}")
            return
        if request.state == "rejected":
            raise PreflightError(f"The credit note under the key {key} was rejected.", "Use a new key.")
        note = request.credit_note
        open_text = f"Open of {found.number}: {_open(_find(number))} {found.currency}."
    total = f"{_money(note.total_cents, note.invoice.currency)} {note.invoice.currency}"
    print(f"{note.number}{'' if is_new else ' was made before'}: {total} of {number}. {open_text}")


@invoice.command("download")
@click.argument("number")
@click.option("--kind", type=click.Choice(_KINDS), default="pdf", show_default=True)
@click.option("--credit-note", is_flag=True, help="Of the credit note that takes it back.")
@click.option("--note", metavar="NUMBER", default="", help="Of its credit note with this number.")
@_OUT
def download(number: str, kind: str, credit_note: bool, note: str, output: Path | None) -> None:
    """Write a document of the invoice NUMBER, as it was rendered when it became final."""
    with _changing("Nothing was written"):
        from billing.invoices import registry

        found = registry.find(number)
        document = registry.document(found, kind, note=note or (registry.CREDIT_NOTE if credit_note else ""))
        name = document.credit_note.number if document.credit_note else found.number
    _write(bytes(document.content), output or Path(f"{name.replace('/', '-')}.{kind}"))


@contextmanager
def _changing(failure: str = "Nothing was changed") -> Iterator[Any]:
    """Yield the steps of invoices, with the database. Raises PreflightError for what is refused."""
    with on_database(failure):
        from billing.errors import InvoiceRefused, MixedCurrencies
        from billing.invoices import steps

        try:
            with _issuer_found():
                yield steps
        except (InvoiceRefused, MixedCurrencies) as error:
            raise PreflightError(str(error), "") from error


@contextmanager
def _issuer_found() -> Iterator[None]:
    """Say how an issuer is made, where there is none of a name."""
    from tenants import error_text
    from tenants.errors import NotFound

    try:
        yield
    except NotFound as error:
        if error.kind != "issuer":
            raise
        command = f'hearth issuer set {error.name} --legal-name "Example GmbH" --city Berlin --country DE'
        raise PreflightError(
            error_text.words(error), f"Set your legal entity, which makes invoices: {command}"
        ) from error


def _actor() -> Any:
    from tenants import audit

    return audit.shell("hearth invoice")


def _find(number: str) -> Invoice:
    from billing.invoices import registry

    return registry.find(number)


def _open(found: Invoice) -> str:
    from billing.invoices import registry

    return _money(registry.open_cents(found), found.currency)


def _cells(found: Invoice) -> tuple[str, ...]:
    from django.utils import timezone

    from billing.invoices import states
    from tenants.models import Tenant

    return (
        found.number,
        Tenant.objects.get(id=found.tenant_id).slug,
        found.period,
        states.shown(found, timezone.now().date()),
        _total(found),
        _open(found),
        found.issued_on.isoformat(),
        found.due_on.isoformat(),
    )


def _total(found: Invoice) -> str:
    return f"{_money(found.total_cents, found.currency)} {found.currency}"


def _money(cents: int, currency: str) -> str:
    from billing.invoices.documents import money_text

    return money_text.amount(cents, currency)


def _cents(option: str, text: str, currency: str) -> int:
    from billing.pricing import amounts

    try:
        return amounts.to_minor(text if len(text) < 20 else "", currency)
    except ValueError:
        use = f"{option} {text!r} is no amount in {currency}; use one such as {amounts.example(currency)}."
        raise click.UsageError(use) from None


def _write(data: bytes, path: Path) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise PreflightError(f"{path} cannot be written: {error.strerror}.", "") from error
    print(f"{path}: {len(data)} bytes")

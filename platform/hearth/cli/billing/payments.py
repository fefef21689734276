"""`hearth payment`: import bank statements, and assign, keep, undo or dismiss lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from hearth.checks.preflight import PreflightError
from hearth.cli.on_database import on_database
from hearth.cli.output.text_table import table

if TYPE_CHECKING:
    from billing.models import BankLine  # its models need Django
    from billing.payments.importing import Report

_HEADS = ("LINE", "BOOKED", "AMOUNT", "REST", "STATE", "PAYER", "TEXT", "WHY")
_SHOWN = 200
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(short_help="Import bank statements, and assign their lines to invoices.")
def payment() -> None:
    """Import bank statements, and assign their lines to invoices. docs/billing/payments.md says more.

    \b
    Examples:
      hearth payment import statement.xml --dry-run
      hearth payment import statement.xml
      hearth payment list
      hearth payment assign 019ac… INV-000001
      hearth payment keep 019ac…
      hearth payment undo 019ac… INV-000001 --reason "It was for INV-000002"
      hearth payment dismiss 019ac… --reason "Refunded on 14 December"
    """


@payment.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@_JSON
def import_file(file: Path, dry_run: bool, as_json: bool) -> None:
    """Import the bank statement FILE: camt.053 (XML) or CSV. The same lines again change nothing."""
    with _changing("Nothing was imported"):
        from billing.payments import bank_file, bank_statement, importing

        with file.open("rb") as opened:
            statement = bank_file.read(opened.read(bank_statement.MAX_BYTES + 1))
        report = importing.run(_actor(), statement, dry_run=dry_run)
    if as_json:
        print(json.dumps(_document(report), indent=2, ensure_ascii=False))
        return
    rows = [
        (each.entry.bank_reference, _money(each.entry.amount_cents, each.entry.currency), each.outcome,
         ", ".join(each.invoices), each.problem)
        for each in report.lines if each.outcome != "known"
    ]  # fmt: skip
    if rows:
        print(table(("REFERENCE", "AMOUNT", "OUTCOME", "INVOICES", "WHY"), rows))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.counts.items())) or "no lines"
    print(f"{'Would be imported' if dry_run else 'Imported'}: {counts}.{_left_out(report)}")


@payment.command("list")
@click.option("--state", type=click.Choice(["open", "matched", "dismissed", "all"]), default="open", show_default=True)
@_JSON
def list_lines(state: str, as_json: bool) -> None:
    """List lines of bank statements, by default those of which something is not assigned; the newest 200."""
    with on_database("The lines cannot be read"):
        from billing.models import BankLine

        rows = BankLine.objects.order_by("-id")
        cells = [_cells(each) for each in (rows if state == "all" else rows.filter(state=state))[:_SHOWN]]
    if as_json:
        print(json.dumps([dict(zip(map(str.lower, _HEADS), row, strict=True)) for row in cells], indent=2))
        return
    print(table(_HEADS, cells) if cells else "There is no such line.")


@payment.command("assign")
@click.argument("line", type=click.UUID)
@click.argument("number")
@click.option("--amount", metavar="AMOUNT", help="Such as 12.50. Default: what is open, at most what is left.")
def assign(line: UUID, number: str, amount: str | None) -> None:
    """Pay the invoice NUMBER from LINE, or from what is left of it."""
    with _changing("Nothing was changed") as assignment:
        cents = None if amount is None else _cents(amount, assignment.find(line).currency)
        found = assignment.assign(_actor(), line, number, amount_cents=cents)
    print(f"{found.bank_reference} is {found.state}. Left: {_money(found.rest_cents, found.currency)}.")


@payment.command("undo")
@click.argument("line", type=click.UUID)
@click.argument("number")
@click.option("--reason", required=True, help="Why, in up to 500 characters.")
def undo(line: UUID, number: str, reason: str) -> None:
    """Take back what LINE paid of the invoice NUMBER: that much is open again, and left of the line."""
    with _changing("Nothing was changed") as assignment:
        found = assignment.undo(_actor(), line, number, reason)
    print(f"{found.bank_reference} pays nothing of {number}. Left: {_money(found.rest_cents, found.currency)}.")


@payment.command("keep")
@click.argument("line", type=click.UUID)
@click.option("--tenant", metavar="SLUG", help="Whose credit it becomes. Default: of the tenant whose invoice it paid.")
def keep(line: UUID, tenant: str | None) -> None:
    """Make what is left of LINE prepaid credit, which pays later months."""
    with _changing("Nothing was changed") as assignment:
        from tenants.registry import find_tenant

        owner = None if tenant is None else find_tenant(tenant)
        rest = assignment.find(line)
        assignment.keep_as_credit(_actor(), line, owner)
    print(f"{_money(rest.rest_cents, rest.currency)} of {rest.bank_reference} became prepaid credit.")


@payment.command("match")
def match() -> None:
    """Try the lines of the queue again, as beat does every ten minutes."""
    with _changing("Nothing was changed"):
        from billing.payments import retrying

        paid = retrying.run(_actor())
    print(f"{paid} lines paid something.")


@payment.command("dismiss")
@click.argument("line", type=click.UUID)
@click.option("--reason", required=True, help="Why, in up to 500 characters, for the audit log.")
def dismiss(line: UUID, reason: str) -> None:
    """Take what is left of LINE out of the queue."""
    with _changing("Nothing was changed") as assignment:
        found = assignment.dismiss(_actor(), line, reason)
    print(f"{found.bank_reference} is {found.state}: {found.dismiss_reason}")


@contextmanager
def _changing(failure: str) -> Iterator[Any]:
    """Yield the assignment of lines, with the database. Raises PreflightError for what is refused."""
    with on_database(failure):
        from billing.errors import BadBankFile, InvoiceRefused, PaymentRefused
        from billing.payments import assignment

        try:
            yield assignment
        except (BadBankFile, InvoiceRefused, PaymentRefused) as error:
            raise PreflightError(str(error), "") from error


def _actor() -> Any:
    from tenants import audit

    return audit.shell("hearth payment")


def _document(report: Report) -> dict[str, Any]:
    return {
        "lines": [
            {
                "reference": each.entry.bank_reference,
                "amount": _units(each.entry.amount_cents, each.entry.currency),
                "currency": each.entry.currency,
                "outcome": each.outcome,
                "invoices": list(each.invoices),
                "problem": each.problem,
            }
            for each in report.lines
        ],
        "outgoing": report.outgoing,
        "pending": report.pending,
    }


def _left_out(report: Report) -> str:
    counts: Sequence[tuple[int, str]] = ((report.outgoing, "outgoing"), (report.pending, "not booked yet"))
    texts = [f"{count} {what}" for count, what in counts if count]
    return f" Left out: {' and '.join(texts)}." if texts else ""


def _cells(line: BankLine) -> tuple[str, ...]:
    return (
        str(line.id),
        line.booked_on.isoformat(),
        _money(line.amount_cents, line.currency),
        _units(line.rest_cents, line.currency),
        line.state,
        line.payer,
        line.remittance,
        line.problem or line.dismiss_reason,
    )


def _money(cents: int, currency: str) -> str:
    return f"{_units(cents, currency)} {currency}"


def _units(cents: int, currency: str) -> str:
    from billing.pricing import amounts

    return amounts.of_minor(cents, currency)


def _cents(text: str, currency: str) -> int:
    from billing.payments import bank_statement

    return bank_statement.cents("--amount", text, currency)

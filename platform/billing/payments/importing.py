"""Import a bank statement: store each line once, and pay the invoices that it names.

Each line is stored and assigned in a transaction of its own, so an import that was interrupted is completed by the next
one, and the same file, or one that overlaps it, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db import connection, transaction

from billing import second_person
from billing.errors import BadBankFile, InvoiceRefused
from billing.invoices import registry
from billing.models import BankLine, Invoice
from billing.payments import assignment, bank_file, matching
from billing.payments.bank_statement import Entry, Statement
from billing.payments.matching import Candidate
from billing.pricing.amounts import of_minor
from tenants import audit
from tenants.audit import Actor

Outcome = Literal["known", "matched", "partly matched", "open"]
#: Accounts that the audit entry names.
MOST_AUDITED = 20
#: Why a line that has money of ours pays nothing, whatever its text names.
CAME_BACK = "Money that went out came back. Find what it was for, and dismiss the line with what was done."
#: Number of the advisory lock of imports: "bank" in ASCII.
_LOCK = 0x62616E6B
#: Keys of one query.
_BATCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did with one line, and why it is not matched."""

    entry: Entry
    outcome: Outcome
    invoices: tuple[str, ...] = ()
    #: The ids of ``invoices``, whose numbers may be equal where there are two issuers.
    invoice_ids: tuple[UUID, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an import did, line by line."""

    lines: Sequence[Imported]
    outgoing: int
    pending: int

    @property
    def counts(self) -> Mapping[str, int]:
        """How many lines had each outcome."""
        return Counter(each.outcome for each in self.lines)


def run(actor: Actor, statement: Statement, *, dry_run: bool = False) -> Report:
    """Import a statement; with ``dry_run``, do the same and undo all of it.

    Raises BadBankFile, before anything is changed, for a line that was imported with another date or amount.
    """
    if dry_run:
        with transaction.atomic():
            report = _run(actor, statement, at_once=True)
            transaction.set_rollback(True)
        return report
    return _run(actor, statement)


def _run(actor: Actor, statement: Statement, *, at_once: bool = False) -> Report:
    """Import a statement. ``at_once``: all of it is one transaction, which takes its locks first."""
    if at_once:
        _lock("pg_advisory_xact_lock")
    known = _known(statement.entries)
    among = matching.candidates()
    named = {
        _key(entry): matching.named(entry.remittance, among)
        for entry in statement.entries
        if entry.amount_cents >= 0 and _key(entry) not in known
    }
    if at_once:
        registry.all_locked(each.id for found in named.values() for each in found)
    lines = [
        Imported(entry=entry, outcome="known")
        if _key(entry) in known
        else _one(actor, entry, named.get(_key(entry), []))
        for entry in statement.entries
    ]
    report = Report(lines=lines, outgoing=statement.outgoing, pending=statement.pending)
    if len(lines) > report.counts.get("known", 0):
        accounts = sorted({entry.bank_account for entry in statement.entries})
        target = accounts[0] if len(accounts) == 1 else f"{len(accounts)} accounts"
        audit.record(
            actor,
            "payments.imported",
            ("bank account", target),
            after={"accounts": accounts[:MOST_AUDITED], "lines": dict(report.counts)},
        )
    return report


def _key(entry: Entry) -> tuple[str, str]:
    return entry.bank_account, entry.bank_reference


def _known(entries: Sequence[Entry]) -> set[tuple[str, str]]:
    """Return which lines are stored already. Raises BadBankFile for one that is stored with other facts."""
    by_key = {_key(entry): entry for entry in entries}
    keys, known = list(by_key), set()
    for start in range(0, len(keys), _BATCH):
        part = keys[start : start + _BATCH]
        rows = BankLine.objects.filter(
            bank_account__in={account for account, _ in part}, bank_reference__in=[reference for _, reference in part]
        )
        for row in rows:
            entry = by_key.get((row.bank_account, row.bank_reference))
            if entry is None:
                continue
            if bank_file.facts(entry) != (row.booked_on, row.amount_cents, row.currency):
                raise BadBankFile(
                    entry.place,
                    f"{entry.bank_reference!r} was imported with another date or amount "
                    f"({row.booked_on}, {row.amount_cents} cents, {row.currency})",
                )
            known.add(_key(entry))
    return known


@transaction.atomic
def _one(actor: Actor, entry: Entry, named: Sequence[Candidate]) -> Imported:
    """Store one line and pay what it names; known if another import has stored it meanwhile."""
    _lock("pg_advisory_xact_lock_shared")
    line = BankLine(
        bank_account=entry.bank_account,
        bank_reference=entry.bank_reference,
        booked_on=entry.booked_on,
        amount_cents=entry.amount_cents,
        currency=entry.currency,
        payer=entry.payer,
        remittance=entry.remittance,
        imported_by=second_person.person(actor),
    )
    BankLine.objects.bulk_create([line], ignore_conflicts=True)
    stored = BankLine.objects.select_for_update().filter(id=line.id).first()
    if stored is None:
        return Imported(entry=entry, outcome="known")
    paid, problem = ([], CAME_BACK) if entry.came_back else _pay(actor, stored, named)
    if problem:
        stored.problem = problem[:500]
        stored.save(update_fields=["problem"])
    outcome: Outcome = "open"
    if stored.assigned_cents:
        outcome = "partly matched" if stored.rest_cents else "matched"
    return Imported(
        entry=entry,
        outcome=outcome,
        invoices=tuple(each.number for each in paid),
        invoice_ids=tuple(each.id for each in paid),
        problem=problem,
    )


def _lock(function: str) -> None:
    """Have no line stored during a dry run: each would wait for the other's lines, and for the invoices of both."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [_LOCK])


def _pay(actor: Actor, line: BankLine, found: Sequence[Candidate]) -> tuple[list[Invoice], str]:
    """Pay the invoices that a line names; return them, and why something of the line is not assigned."""
    if line.amount_cents < 0:
        return [], "A payment went back. Find the invoice that it paid, and what to do with it."
    if not found:
        return [], "Its text has no number of an invoice that is to be paid."
    if wrong := sorted({each.currency for each in found} - {line.currency}):
        return [], f"The invoice that it names is in {', '.join(wrong)}."
    try:
        with transaction.atomic():
            paid = assignment.pay_all(actor, line, [each.id for each in found])
    except InvoiceRefused as error:
        line.refresh_from_db()
        return [], str(error)
    rest = line.rest_cents
    return paid, f"{of_minor(rest, line.currency)} {line.currency} are more than was to be paid." if rest else ""

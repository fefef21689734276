"""Import a bank statement: store each line once, and pay the invoices that it names.

Lines that name no invoice are stored many at a time. Each other line is stored and assigned in a transaction of its
own, so an import that was interrupted is completed by the next one, and the same file, or one that overlaps it, changes
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

Outcome = Literal["known", "matched", "partly matched", "open", "waiting"]
#: Lines that pay something within a request of the portal, about 20 ms each; a run pays the others.
MOST_PAID_AT_ONCE = 20
#: What a line says until a run has tried it.
WAITING = "It names invoices, and waits to be matched."
NOTHING_NAMED = "Its text has no number of an invoice that is to be paid."
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
    """What an import did with one line, and why it is not matched.

    ``waiting``: it is stored, and is to be matched. ``line_id``: of a line that is stored now and pays nothing yet.
    """

    entry: Entry
    outcome: Outcome
    invoices: tuple[str, ...] = ()
    #: The ids of ``invoices``, whose numbers may be equal where there are two issuers.
    invoice_ids: tuple[UUID, ...] = ()
    problem: str = ""
    line_id: UUID | None = field(default=None, compare=False)


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

    @property
    def waiting(self) -> list[UUID]:
        """The ids of the lines that are to be matched."""
        return [each.line_id for each in self.lines if each.outcome == "waiting" and each.line_id is not None]


def run(actor: Actor, statement: Statement, *, dry_run: bool = False, most_paid: int | None = None) -> Report:
    """Import a statement; with ``dry_run``, do the same and undo all of it.

    ``most_paid``: of how many lines that name invoices these are paid now; the others are stored, and wait for
    :func:`match`. Raises BadBankFile, before anything is changed, for a line that was imported with another date or
    amount.
    """
    if dry_run:
        with transaction.atomic():
            report = _run(actor, statement, most_paid, at_once=True)
            transaction.set_rollback(True)
        return report
    return _run(actor, statement, most_paid)


def match(actor: Actor, line_id: UUID, among: Sequence[Candidate]) -> tuple[Outcome, str]:
    """Pay those of these invoices that a stored line names; return its outcome, and why money of it is left.

    The outcome is ``known`` for a line that somebody assigned or dismissed meanwhile. Idempotent.
    """
    with transaction.atomic():
        line = BankLine.objects.select_for_update().get(id=line_id)
        if line.state != BankLine.State.OPEN or line.assigned_cents:
            return "known", ""
        _, problem = _pay(actor, line, matching.named(line.remittance, among))
        line.problem = problem[:500]
        line.save(update_fields=["problem"])
        return _outcome(line), problem


def _run(actor: Actor, statement: Statement, most_paid: int | None, *, at_once: bool = False) -> Report:
    """Import a statement. ``at_once``: all of it is one transaction, which takes its locks first."""
    if at_once:
        _lock("pg_advisory_xact_lock")
    known = _known(statement.entries)
    among = matching.candidates()
    named = {
        _key(entry): found
        for entry in statement.entries
        if entry.amount_cents >= 0 and _key(entry) not in known
        if not entry.came_back and (found := matching.named(entry.remittance, among))
    }
    paying = dict(list(named.items())[:most_paid])
    if at_once:
        registry.all_locked(each.id for found in paying.values() for each in found)
    new = [entry for entry in statement.entries if _key(entry) not in known]
    stored = _stored(actor, [entry for entry in new if _key(entry) not in paying], named)
    lines = []
    for entry in statement.entries:
        if (pays := paying.get(_key(entry))) is not None:
            lines.append(_one(actor, entry, pays))
        else:
            lines.append(stored.pop(_key(entry), Imported(entry=entry, outcome="known")))
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


def _stored(
    actor: Actor, entries: Sequence[Entry], named: Mapping[tuple[str, str], Sequence[Candidate]]
) -> dict[tuple[str, str], Imported]:
    """Store lines that pay nothing now; return those that no other import had stored, by their keys."""
    found: dict[tuple[str, str], Imported] = {}
    for start in range(0, len(entries), _BATCH):
        part = {}
        for entry in entries[start : start + _BATCH]:
            problem = WAITING if _key(entry) in named else _nothing_named(entry)
            part[_line(actor, entry, problem)] = entry
        with transaction.atomic():
            _lock("pg_advisory_xact_lock_shared")
            BankLine.objects.bulk_create(part, ignore_conflicts=True)
            new = set(BankLine.objects.filter(id__in=[line.id for line in part]).values_list("id", flat=True))
        for line, entry in part.items():
            if line.id in new:
                is_named = _key(entry) in named
                found[_key(entry)] = Imported(
                    entry=entry,
                    outcome="waiting" if is_named else "open",
                    problem="" if is_named else line.problem,
                    line_id=line.id,
                )
    return found


def _nothing_named(entry: Entry) -> str:
    """Return why a line that names nothing is not matched."""
    if entry.came_back:
        return CAME_BACK
    if entry.amount_cents < 0:
        return "A payment went back. Find the invoice that it paid, and what to do with it."
    return NOTHING_NAMED


def _line(actor: Actor, entry: Entry, problem: str = "") -> BankLine:
    return BankLine(
        bank_account=entry.bank_account,
        bank_reference=entry.bank_reference,
        booked_on=entry.booked_on,
        amount_cents=entry.amount_cents,
        currency=entry.currency,
        payer=entry.payer,
        remittance=entry.remittance,
        imported_by=second_person.person(actor),
        problem=problem,
    )


@transaction.atomic
def _one(actor: Actor, entry: Entry, named: Sequence[Candidate]) -> Imported:
    """Store one line and pay what it names; known if another import has stored it meanwhile."""
    _lock("pg_advisory_xact_lock_shared")
    line = _line(actor, entry)
    BankLine.objects.bulk_create([line], ignore_conflicts=True)
    stored = BankLine.objects.select_for_update().filter(id=line.id).first()
    if stored is None:
        return Imported(entry=entry, outcome="known")
    paid, problem = _pay(actor, stored, named)
    if problem:
        stored.problem = problem[:500]
        stored.save(update_fields=["problem"])
    return Imported(
        entry=entry,
        outcome=_outcome(stored),
        invoices=tuple(each.number for each in paid),
        invoice_ids=tuple(each.id for each in paid),
        problem=problem,
    )


def _outcome(line: BankLine) -> Outcome:
    if not line.assigned_cents:
        return "open"
    return "partly matched" if line.rest_cents else "matched"


def _lock(function: str) -> None:
    """Have no line stored during a dry run: each would wait for the other's lines, and for the invoices of both."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [_LOCK])


def _pay(actor: Actor, line: BankLine, found: Sequence[Candidate]) -> tuple[list[Invoice], str]:
    """Pay the invoices that a line names; return them, and why something of the line is not assigned."""
    if not found:
        return [], NOTHING_NAMED
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

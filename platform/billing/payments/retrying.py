"""Try lines of the queue again: invoices that they name may have become final since, or replace one that they name."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction

from billing.errors import InvoiceRefused
from billing.models import BankLine
from billing.payments import assignment, matching
from billing.payments.importing import CAME_BACK
from billing.payments.matching import Candidate
from billing.pricing.amounts import of_minor
from tenants.audit import Actor


def run(actor: Actor) -> int:
    """Pay what untouched lines of the queue name by now; return how many lines paid something. Idempotent.

    A line that names a void invoice pays the one that replaces it. It may have arrived before that one's date. One of
    which an assignment was undone is left to people.
    """
    among, replaced = matching.candidates(), matching.replaced()
    if not among:
        return 0
    rows = BankLine.objects.filter(state=BankLine.State.OPEN, assigned_cents=0, amount_cents__gt=0, assignments=None)
    rows = rows.exclude(problem=CAME_BACK).order_by("id")
    return sum(_try(actor, line.id, found) for line in rows.iterator() if (found := _named(line, among, replaced)))


def _named(
    line: BankLine, among: Sequence[Candidate], replaced: Sequence[tuple[Candidate, Candidate]]
) -> list[Candidate]:
    """Return what the line names in its currency, or nothing if one of them is in another."""
    void = {each.id for each in matching.named(line.remittance, [before for before, _ in replaced])}
    found = {each.id: each for each in matching.named(line.remittance, among)}
    found |= {after.id: after for before, after in replaced if before.id in void}
    return list(found.values()) if all(each.currency == line.currency for each in found.values()) else []


@transaction.atomic
def _try(actor: Actor, line_id: UUID, found: Sequence[Candidate]) -> int:
    line = BankLine.objects.select_for_update().get(id=line_id)
    if line.state != BankLine.State.OPEN or line.assigned_cents:
        return 0  # somebody assigned it meanwhile
    try:
        with transaction.atomic():
            assignment.pay_all(actor, line, [each.id for each in found], may_be_earlier=True)
    except InvoiceRefused:
        return 0
    if line.rest_cents:
        line.problem = f"{of_minor(line.rest_cents, line.currency)} {line.currency} are more than was to be paid."
        line.save(update_fields=["problem"])
    return 1

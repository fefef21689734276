"""Go on with runs: one tenant, or line of a bank statement, after the other, each in one transaction with its outcome.

A worker that dies leaves its part waiting, as the transaction is rolled back, and the next tick takes it, after all
others that wait. Workers that run it at once share the parts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.accounts import account
from billing.errors import InvoiceRefused, MixedCurrencies, NotClosed, StripeRefused
from billing.invoices import finalizing
from billing.models import BillingRun, BillingRunPart, Invoice
from billing.models.runs import LONGEST_TEXT
from billing.months import closing
from billing.payments import importing, matching
from billing.reports.statements import Month
from billing.runs import registry
from billing.runs.registry import Kind, Outcome
from billing.stripe import pushing
from tenants import error_text
from tenants.audit import Actor
from tenants.errors import TenantError
from tenants.models import Tenant

log = logging.getLogger(__name__)

#: A worker that stops waits for its task; it is killed after `hearth.instance.roles.TASKS_GRACE_SECONDS`.
SLICE_SECONDS = 5.0
#: So often it is begun. What kills its worker each time, by its memory for instance, would otherwise never end.
MOST_TRIES = 5
LOST = "Each worker that did it died or was stopped before it was through. The log of the role background may say why."
FAILED = "It failed with an error that the log of the role background has. Try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one part."""

    outcome: str
    text: str = ""


#: Does something for the tenant, or with the line, that has this id.
Work = Callable[[Actor, UUID], Done]


def go_on(seconds: float = SLICE_SECONDS) -> bool:
    """Go on with every run for about ``seconds``; return whether something is left that this call could not do."""
    until = time.monotonic() + seconds
    for run in BillingRun.objects.filter(finished_at=None).order_by("id"):
        work = _WORK[run.kind](run)
        while _one(run, work):
            if time.monotonic() >= until:
                return True
        registry.finish(run)
    return False


def _one(run: BillingRun, work: Work) -> bool:
    """Do what a run does for the next part that waits; False if none does, or others have them."""
    waiting = BillingRunPart.objects.filter(run=run, outcome=Outcome.WAITING)
    with transaction.atomic():  # counted whatever becomes of this process
        taken = waiting.order_by("tries", "id").select_for_update(skip_locked=True).first()
        if taken is None:
            return False
        taken.tries += 1
        taken.save(update_fields=["tries"])
    with transaction.atomic():
        part = waiting.filter(id=taken.id).select_for_update(skip_locked=True).first()
        if part is None:
            return True  # stopped, or another worker has it
        done = _done(run, part, work) if part.tries <= MOST_TRIES else Done(outcome=Outcome.FAILED, text=LOST)
        part.outcome, part.text, part.done_at = done.outcome, done.text[:LONGEST_TEXT], timezone.now()
        part.save(update_fields=["outcome", "text", "done_at"])
    return True


def _done(run: BillingRun, part: BillingRunPart, work: Work) -> Done:
    """Do it; a refusal or an error undoes it. An error of a connection that is lost comes up again in the caller."""
    actor = Actor(
        kind=cast('Literal["user", "key", "system"]', run.actor_kind), name=run.actor, request_id=run.request_id
    )
    try:
        with transaction.atomic():
            return work(actor, part.subject_id)
    except TenantError as error:
        return Done(outcome=Outcome.REFUSED, text=error_text.words(error))
    except (InvoiceRefused, MixedCurrencies, NotClosed, StripeRefused) as error:
        return Done(outcome=Outcome.REFUSED, text=str(error))
    except Exception:
        log.exception("%s of %s failed", run, part.subject_id)
        return Done(outcome=Outcome.FAILED, text=FAILED)


def _close(actor: Actor, month: Month) -> Done:
    _, new = closing.close(actor, month)
    return Done(outcome=Outcome.DONE if new else Outcome.UNCHANGED)


def _invoice(actor: Actor, month: Month) -> Done:
    if account.of(month.tenant).details.issuer == Invoice.Channel.STRIPE:
        push, _ = pushing.begin(actor, month)
        pushing.request(push)
        return Done(outcome=Outcome.UNCHANGED if push.sent_at else Outcome.DONE, text="Stripe")
    invoice, new = finalizing.finalize(actor, month)
    return Done(outcome=Outcome.DONE if new else Outcome.UNCHANGED, text=invoice.number)


def _for_tenants(do: Callable[[Actor, Month], Done]) -> Callable[[BillingRun], Work]:
    """Return what makes the work of a run of a month: it does something for the month of a tenant."""

    def of_run(run: BillingRun) -> Work:
        day = run.first_day

        def work(actor: Actor, tenant_id: UUID) -> Done:
            return do(actor, Month(tenant=Tenant.objects.get(id=tenant_id), year=day.year, month=day.month))

        return work

    return of_run


def _matching(_run: BillingRun) -> Work:
    """Return what pays from a line what it names of the invoices that are to be paid now."""
    among = matching.candidates()

    def work(actor: Actor, line_id: UUID) -> Done:
        outcome, problem = importing.match(actor, line_id, among)
        found = {"known": Outcome.UNCHANGED, "open": Outcome.REFUSED}.get(outcome, Outcome.DONE)
        return Done(outcome=found, text=problem)

    return work


_WORK: Final[Mapping[str, Callable[[BillingRun], Work]]] = {
    Kind.CLOSE_MONTHS: _for_tenants(_close),
    Kind.MAKE_INVOICES: _for_tenants(_invoice),
    Kind.MATCH_PAYMENTS: _matching,
}

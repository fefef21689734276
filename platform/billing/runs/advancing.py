"""Go on with runs: one tenant after the other, each in one transaction with its outcome.

A worker that dies leaves its tenant waiting, as the transaction is rolled back, and the next tick takes it. Workers
that run it at once share the tenants.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from django.db import transaction
from django.utils import timezone

from billing.accounts import account
from billing.errors import InvoiceRefused, MixedCurrencies, NotClosed, StripeRefused
from billing.invoices import finalizing
from billing.models import BillingRun, BillingRunPart, Invoice
from billing.models.runs import LONGEST_TEXT
from billing.months import closing
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
FAILED = "It failed with an error that the log of the role background has. Try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of one tenant's month."""

    outcome: str
    text: str = ""


def go_on(seconds: float = SLICE_SECONDS) -> bool:
    """Go on with every run for about ``seconds``; return whether something is left that this call could not do."""
    until = time.monotonic() + seconds
    for run in BillingRun.objects.filter(finished_at=None).order_by("id"):
        while _one(run):
            if time.monotonic() >= until:
                return True
        registry.finish(run)
    return False


@transaction.atomic
def _one(run: BillingRun) -> bool:
    """Do what a run does for the next tenant that waits; False if none does, or others have them."""
    waiting = BillingRunPart.objects.filter(run=run, outcome=Outcome.WAITING).order_by("id")
    part = waiting.select_for_update(skip_locked=True).first()
    if part is None:
        return False
    done = _done(run, part)
    part.outcome, part.text, part.done_at = done.outcome, done.text[:LONGEST_TEXT], timezone.now()
    part.save(update_fields=["outcome", "text", "done_at"])
    return True


def _done(run: BillingRun, part: BillingRunPart) -> Done:
    """Do it; a refusal or an error undoes it. An error of a connection that is lost comes up again in the caller."""
    actor = Actor(
        kind=cast('Literal["user", "key", "system"]', run.actor_kind), name=run.actor, request_id=run.request_id
    )
    try:
        with transaction.atomic():
            day = run.first_day
            month = Month(tenant=Tenant.objects.get(id=part.subject_id), year=day.year, month=day.month)
            return _WORK[run.kind](actor, month)
    except TenantError as error:
        return Done(outcome=Outcome.REFUSED, text=error_text.words(error))
    except (InvoiceRefused, MixedCurrencies, NotClosed, StripeRefused) as error:
        return Done(outcome=Outcome.REFUSED, text=str(error))
    except Exception:
        log.exception("%s of the tenant %s failed", run, part.subject_id)
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


_WORK: Final[Mapping[str, Callable[[Actor, Month], Done]]] = {Kind.CLOSE_MONTHS: _close, Kind.MAKE_INVOICES: _invoice}

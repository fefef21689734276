"""Take the steps that are due: each once for an invoice, at most one of an invoice in a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, Min, OuterRef, Q
from django.utils import timezone

from billing import metrics
from billing.dunning import dates, holds, policy, suspending
from billing.dunning.policy import Next, Policy
from billing.invoices import registry, states
from billing.invoices.announcing import announce
from billing.models import DunningCase, DunningRun, DunningStep, Invoice, PaymentFailure
from billing.pricing.amounts import of_minor
from notifications.event_types import INVOICE_REMINDED
from tenants import audit
from tenants.audit import SYSTEM
from tenants.models import Tenant

log = logging.getLogger(__name__)

KEPT = timedelta(days=90)
_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run did: how many steps, and how many invoices and tenants could not be looked at."""

    steps: int
    failures: int


def run(now: datetime) -> Ran:
    """Look at every invoice that is late, or of which a payment failed. Idempotent, also for two at once.

    Each invoice and each tenant is a transaction of its own: one that fails does not stop the others, and the next run
    tries it again.
    """
    row = DunningRun.objects.create(started_at=now)
    taken = failed = 0
    for invoice_id in _late(now):
        try:
            taken += _look(invoice_id, now)
        except Exception:  # whatever it is about this one, the others are looked at
            failed += 1
            log.exception("dunning of invoice %s failed", invoice_id)
    for tenant in _suspendable():
        try:
            with transaction.atomic():
                suspending.review(SYSTEM, tenant, now)
        except Exception:  # as above
            failed += 1
            log.exception("dunning of tenant %s failed", tenant.slug)
    metrics.DUNNING_STEPS.inc(taken)
    metrics.DUNNING_FAILURES.inc(failed)
    metrics.DUNNING_SUSPENDED.set(Tenant.objects.filter(payment_overdue_since__isnull=False).count())
    DunningRun.objects.filter(id=row.id).update(finished_at=timezone.now(), steps=taken, failures=failed)
    DunningRun.objects.filter(started_at__lt=now - KEPT).delete()
    return Ran(steps=taken, failures=failed)


def _late(now: datetime) -> Iterator[UUID]:
    """Yield the invoices that may be late anywhere, in the order of their ids."""
    failed = Exists(PaymentFailure.objects.filter(invoice=OuterRef("pk")))
    rows = Invoice.objects.filter(failed | Q(due_on__lte=now.date()), state__in=states.UNPAID).order_by("id")
    last: UUID | None = None
    while ids := list((rows if last is None else rows.filter(id__gt=last)).values_list("id", flat=True)[:_BATCH]):
        yield from ids
        last = ids[-1]


def _suspendable() -> list[Tenant]:
    """Return the tenants that are suspended, or had a step that may suspend them: a hold or a policy may have ended."""
    last = DunningStep.objects.filter(kind=DunningStep.Kind.SUSPENSION, invoice__state__in=states.UNPAID)
    return list(Tenant.objects.filter(Q(id__in=last.values("tenant_id")) | Q(payment_overdue_since__isnull=False)))


@transaction.atomic
def _look(invoice_id: UUID, now: datetime) -> int:
    """Take the step of an invoice that is due, if one is; return how many were taken."""
    invoice = Invoice.objects.select_for_update(of=("self",)).get(id=invoice_id)
    tenant = Tenant.objects.select_for_update(no_key=True).get(id=invoice.tenant_id)  # before its cases
    if invoice.state not in states.UNPAID or tenant.state == Tenant.State.ARCHIVED:
        return 0  # it was paid meanwhile, or nobody is left to remind
    today = dates.today(tenant, now)
    failed_on = invoice.payment_failures.aggregate(first=Min("failed_on"))["first"]
    if failed_on is None and today <= invoice.due_on:
        return 0
    starts_on = invoice.due_on if failed_on is None else min(invoice.due_on, failed_on)
    case, _ = DunningCase.objects.get_or_create(
        invoice=invoice, defaults={"tenant_id": invoice.tenant_id, "starts_on": starts_on}
    )
    case.starts_on, case.invoice = starts_on, invoice
    terms = policy.of_invoice(invoice)
    due = _due(invoice, case, terms, today)
    if due is not None:
        _take(invoice, case, terms, due, today, tenant)
    found = policy.next_step(terms, case, _taken(invoice))
    case.next_kind, case.next_on = ("", None) if found is None else (found.kind, found.on)
    case.save(update_fields=["starts_on", "next_kind", "next_on"])
    if due is not None and due.kind == DunningStep.Kind.SUSPENSION:
        suspending.review(SYSTEM, tenant, now)
    return int(due is not None)


def _taken(invoice: Invoice) -> list[DunningStep]:
    return list(DunningStep.objects.filter(invoice=invoice))


def _due(invoice: Invoice, case: DunningCase, terms: Policy, today: date) -> Next | None:
    if registry.open_cents(invoice) < terms.least_open_cents or holds.of_invoice(invoice, today) is not None:
        return None
    found = policy.next_step(terms, case, _taken(invoice))
    return found if found is not None and found.on <= today else None


def _take(invoice: Invoice, case: DunningCase, terms: Policy, due: Next, today: date, tenant: Tenant) -> None:
    step = DunningStep.objects.create(tenant_id=invoice.tenant_id, invoice=invoice, kind=due.kind, taken_on=today)
    open_text = of_minor(registry.open_cents(invoice), invoice.currency)
    days_late = max(0, (today - invoice.due_on).days)
    audit.record(
        SYSTEM,
        f"dunning.{due.kind.value}",
        ("invoice", invoice.id),
        tenant=tenant,
        after={"number": invoice.number, "open": open_text, "currency": invoice.currency, "days_late": days_late},
    )
    if due.kind == DunningStep.Kind.SUSPENSION:
        return  # the event is about the tenant
    following = policy.next_step(terms, case, _taken(invoice))
    suspends_on = following.on.isoformat() if following and following.kind == DunningStep.Kind.SUSPENSION else None
    announce(
        INVOICE_REMINDED,
        invoice,
        of=step.kind,
        step=step.kind,
        open=open_text,
        days_late=days_late,
        suspends_on=suspends_on,
    )

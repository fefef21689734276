"""Decide which invoices suspend their tenant: those whose last step was taken, by the policy that holds now."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from billing.dunning import dates, holds, policy
from billing.invoices import registry, states, suspension
from billing.models import DunningCase, DunningStep
from tenants.audit import Actor
from tenants.models import Tenant


def review(actor: Actor, tenant: Tenant, now: datetime) -> None:
    """Suspend a tenant, or serve it again, as its invoices, holds and policy are now. Idempotent.

    Call it in a transaction; it locks the tenant.
    """
    locked = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    taken = DunningStep.objects.filter(
        tenant_id=locked.id, kind=DunningStep.Kind.SUSPENSION, invoice__state__in=states.UNPAID
    )
    today = dates.today(locked, now)
    for case in DunningCase.objects.filter(invoice__in=taken.values("invoice")).select_related("invoice"):
        if _suspends(case, today) != (case.suspends_since is not None):
            case.suspends_since = now if case.suspends_since is None else None
            case.save(update_fields=["suspends_since"])
    suspension.apply(actor, locked.id, now)


def _suspends(case: DunningCase, today: date) -> bool:
    terms = policy.of_invoice(case.invoice)
    if terms.suspension_days is None or today < case.invoice.due_on + timedelta(days=terms.suspension_days):
        return False
    if registry.open_cents(case.invoice) < terms.least_open_cents:
        return False
    return holds.of_invoice(case.invoice, today) is None

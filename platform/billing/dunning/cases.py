"""The invoices in dunning, for pages, the API and the command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from django.db.models import QuerySet

from billing.accounts.overpaid import PAID_CENTS
from billing.dunning import dates
from billing.invoices import registry, states
from billing.models import DunningCase, DunningHold, DunningRun, DunningStep, Invoice
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An invoice in dunning: what is open, what was done, what comes next and what holds it."""

    id: UUID
    invoice: Invoice
    tenant: Tenant
    open_cents: int
    starts_on: date
    days_late: int
    steps: tuple[DunningStep, ...]
    next_kind: str
    next_on: date | None
    hold: DunningHold | None
    suspends_since: datetime | None

    @property
    def next_label(self) -> str:
        """The next step in words."""
        return self.next_kind.replace("_", " ")

    @property
    def step(self) -> str:
        """The last step that was taken; empty: none."""
        return self.steps[-1].kind if self.steps else ""


def rows(tenant: Tenant | None = None) -> QuerySet[DunningCase]:
    """Return the invoices in dunning that are not paid: all, or a tenant's."""
    found = DunningCase.objects.filter(invoice__state__in=states.UNPAID).select_related("invoice")
    return found if tenant is None else found.filter(tenant_id=tenant.id)


def read(now: datetime, *, tenant: Tenant | None = None, most: int | None = None) -> list[Case]:
    """Return the invoices in dunning, the one that is late for longest first: all, or a tenant's."""
    return described(list(rows(tenant).order_by("starts_on", "id")[:most]), now)


def described(found: Sequence[DunningCase], now: datetime) -> list[Case]:
    """Return what is known of these, in their order, with as many queries as for one."""
    tenants = {each.id: each for each in Tenant.objects.filter(id__in={row.tenant_id for row in found})}
    invoices = [row.invoice_id for row in found]
    steps: dict[UUID, list[DunningStep]] = {}
    for step in DunningStep.objects.filter(invoice__in=invoices).order_by("id"):
        steps.setdefault(step.invoice_id, []).append(step)
    sums = Invoice.objects.filter(id__in=invoices).annotate(paid=PAID_CENTS, credited=registry.CREDITED_CENTS)
    settled_cents = {each: paid + credited for each, paid, credited in sums.values_list("id", "paid", "credited")}
    held = _Held(DunningHold.objects.filter(ended_at=None, tenant_id__in=tenants))
    return [
        _case(row, tenants[row.tenant_id], steps.get(row.invoice_id, ()), settled_cents[row.invoice_id], held, now)
        for row in found
    ]


def last_run() -> DunningRun | None:
    """Return the last run that was finished."""
    return DunningRun.objects.exclude(finished_at=None).order_by("-started_at").first()


def why_missing(late: datetime) -> list[str]:
    """Return what is wrong while no run was ever finished: one began before ``late``, or an invoice is late since."""
    if DunningRun.objects.filter(started_at__lt=late).exists():
        return ["A run of dunning that began over two hours ago is not through."]
    if Invoice.objects.filter(state__in=states.UNPAID, overdue_at__lt=late).exists():
        return ["Dunning has never run through, and invoices are late."]
    return []


def suspended() -> list[Tenant]:
    """Return the tenants whose requests are refused because they have not paid, by slug."""
    rows = Tenant.objects.filter(payment_overdue_since__isnull=False).exclude(state=Tenant.State.ARCHIVED)
    return list(rows.order_by("slug"))


class _Held:
    """The holds in force, by what they hold."""

    def __init__(self, rows: Iterable[DunningHold]) -> None:
        self._by_target: dict[tuple[UUID, UUID | None], DunningHold] = {
            (each.tenant_id, each.invoice_id): each for each in rows
        }

    def of(self, row: DunningCase, today: date) -> DunningHold | None:
        for invoice_id in (None, row.invoice_id):
            found = self._by_target.get((row.tenant_id, invoice_id))
            if found is not None and (found.until is None or found.until >= today):
                return found
        return None


def _case(
    row: DunningCase, tenant: Tenant, steps: Sequence[DunningStep], settled_cents: int, held: _Held, now: datetime
) -> Case:
    today = dates.today(tenant, now)
    invoice = row.invoice
    return Case(
        id=row.id,
        invoice=invoice,
        tenant=tenant,
        open_cents=max(0, invoice.total_cents - invoice.applied_cents - settled_cents),
        starts_on=row.starts_on,
        days_late=max(0, (today - invoice.due_on).days),
        steps=tuple(steps),
        next_kind=row.next_kind,
        next_on=row.next_on,
        hold=held.of(row, today),
        suspends_since=row.suspends_since,
    )

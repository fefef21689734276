"""Where every tenant's month stands, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

from billing.models import BillingMonth
from billing.months import closing
from billing.reports.statements import Month
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A tenant's month: its last closing, if there was one, and from when on it may be closed."""

    month: Month
    last: BillingMonth | None
    closes_at: datetime

    @property
    def id(self) -> UUID:
        """The tenant's."""
        return self.month.tenant.id

    @property
    def state(self) -> str:
        """``open``, ``closed`` or ``reopened``."""
        return "open" if self.last is None else self.last.state


def tenants(year: int, month: int) -> list[Tenant]:
    """Return the tenants that existed in that month and are billed, by slug."""
    everybody = Tenant.objects.exclude(slug=PLATFORM_SLUG).order_by("slug")
    return [each for each in everybody if each.created_at < Month(tenant=each, year=year, month=month).end]


def last_month(today: date) -> date:
    """Return the first day of the last month that is over; of this one if no tenant existed before it."""
    over = (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    return over if tenants(over.year, over.month) else today.replace(day=1)


def read(year: int, month: int) -> list[Standing]:
    """Return where the month of every tenant stands, by slug."""
    months = [Month(tenant=each, year=year, month=month) for each in tenants(year, month)]
    rows = BillingMonth.objects.filter(year=year, month=month).order_by("revision")
    last = {row.tenant_id: row for row in rows}
    return [Standing(month=each, last=last.get(each.tenant.id), closes_at=closing.grace_ends(each)) for each in months]

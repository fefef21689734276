"""The closed months of all tenants with the lines of each project: what the journal and the FOCUS export consist of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from billing.models import BillingMonth, FinalStatement, MonthProjectLine
from billing.months import overview
from billing.pricing.classes import LineClass, Priority
from billing.reports import statements
from billing.reports.statements import Line, Month, Statement
from tenants import cost_centres
from tenants.models import Project, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A line of one project, or of the whole tenant if an earlier release closed the month."""

    line: Line
    project: Project | None
    cost_centre: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedMonth:
    """A tenant's closed month; the parts add up to the statement's lines.

    ``cost_centre``: the tenant's when the month was closed, or of today if an earlier release closed it.
    """

    tenant: Tenant
    statement: Statement
    parts: tuple[Part, ...]
    cost_centre: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Months:
    """The closed months of a calendar month, and the slugs of the tenants whose month is open, both by slug."""

    closed: tuple[ClosedMonth, ...]
    open: tuple[str, ...]


def read(year: int, month: int, tenant: Tenant | None = None) -> Months:
    """Return the month of each tenant that existed then, or of one."""
    closed: list[ClosedMonth] = []
    still_open: list[str] = []
    kept = _kept(year, month)
    for each in [tenant] if tenant is not None else overview.tenants(year, month):
        found = statements.kept_statement(Month(tenant=each, year=year, month=month)) if each.id in kept else None
        if found is None:
            still_open.append(each.slug)
        else:
            closed.append(_month(each, found))
    return Months(closed=tuple(closed), open=tuple(still_open))


def _month(tenant: Tenant, found: Statement) -> ClosedMonth:
    closing = _closing(tenant, found)
    frozen = None if closing is None else closing.cost_centre
    centre = tenant.cost_centre if frozen is None else frozen
    parts = tuple(_parts(tenant, found, closing, centre))
    return ClosedMonth(tenant=tenant, statement=found, parts=parts, cost_centre=centre)


def _kept(year: int, month: int) -> set[UUID]:
    """Return the tenants whose month is closed, or was made final by an earlier release."""
    of_month = {"year": year, "month": month}
    closed = BillingMonth.objects.filter(**of_month, reopened_at=None).values_list("tenant_id", flat=True)
    return {*closed, *FinalStatement.objects.filter(**of_month).values_list("tenant_id", flat=True)}


def _closing(tenant: Tenant, found: Statement) -> BillingMonth | None:
    of_month = BillingMonth.objects.filter(tenant_id=tenant.id, year=found.year, month=found.month)
    return of_month.filter(reopened_at=None).first()


def _parts(tenant: Tenant, found: Statement, closing: BillingMonth | None, tenants_centre: str) -> Iterator[Part]:
    rows = list(MonthProjectLine.objects.filter(closing=closing).order_by("position")) if closing is not None else []
    if sum(int(row.amount_pico) for row in rows) != found.usage_pico:
        yield from (Part(line=line, project=None, cost_centre=tenants_centre) for line in found.lines)
        return
    ids: set[UUID] = {row.project_id for row in rows}
    projects = Project.objects.in_bulk(ids)
    today = cost_centres.of_projects(row.project_id for row in rows if row.cost_centre is None)
    for row in rows:
        centre = today.get(row.project_id, tenants_centre) if row.cost_centre is None else row.cost_centre
        yield Part(line=_line(row, found.currency), project=projects.get(row.project_id), cost_centre=centre)


def _line(row: MonthProjectLine, currency: str) -> Line:
    return replace(
        Line(
            model_name=row.model_name,
            token_class=cast("LineClass", row.token_class),
            quantity=row.quantity,
            unit_price_pico=row.unit_price_pico,
            currency=currency,
        ),
        adjusts_month=row.adjusts_month or None,
        priority=cast("Priority", row.priority),
    )

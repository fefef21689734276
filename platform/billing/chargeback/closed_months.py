"""The closed months of all tenants with the lines of each project: what the journal and the FOCUS export consist of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    The statement may lack what the ledger says now. ``cost_centre``: the tenant's when the month was closed, or of
    today if an earlier release closed it.
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
    tenants = [tenant] if tenant is not None else overview.tenants(year, month)
    of_month = {"year": year, "month": month, "tenant_id__in": [each.id for each in tenants]}
    closings = BillingMonth.objects.filter(**of_month, reopened_at=None)
    by_tenant = {each.tenant_id: each for each in closings.prefetch_related("lines", "terms_lines", "project_lines")}
    final = set(FinalStatement.objects.filter(**of_month).values_list("tenant_id", flat=True))
    projects = Project.objects.in_bulk({row.project_id for each in by_tenant.values() for row in _rows(each)})
    closed: list[ClosedMonth] = []
    still_open: list[str] = []
    for each in tenants:
        if (closing := by_tenant.get(each.id)) is not None:
            closed.append(_month(each, statements.closed_statement(closing), closing, projects))
        elif each.id in final and (found := statements.kept_statement(Month(tenant=each, year=year, month=month))):
            closed.append(_month(each, found, None, projects))
        else:
            still_open.append(each.slug)
    return Months(closed=tuple(closed), open=tuple(still_open))


def _month(
    tenant: Tenant, found: Statement, closing: BillingMonth | None, projects: Mapping[UUID, Project]
) -> ClosedMonth:
    frozen = None if closing is None else closing.cost_centre
    centre = tenant.cost_centre if frozen is None else frozen
    parts = tuple(_parts(found, closing, centre, projects))
    return ClosedMonth(tenant=tenant, statement=found, parts=parts, cost_centre=centre)


def _rows(closing: BillingMonth | None) -> list[MonthProjectLine]:
    return [] if closing is None else sorted(closing.project_lines.all(), key=lambda row: row.position)


def _parts(
    found: Statement, closing: BillingMonth | None, tenants_centre: str, projects: Mapping[UUID, Project]
) -> Iterator[Part]:
    rows = _rows(closing)
    if sum(int(row.amount_pico) for row in rows) != found.usage_pico:
        yield from (Part(line=line, project=None, cost_centre=tenants_centre) for line in found.lines)
        return
    unknown = {row.project_id for row in rows if row.cost_centre is None}
    today = cost_centres.of_projects(unknown) if unknown else {}
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

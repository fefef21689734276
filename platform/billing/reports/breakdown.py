"""Usage of a period by tenant, project, key, member, model, day or cost centre, from roll-ups; by end user or tag.

Tags and end users may have any number of values, so roll-ups have none: usage by them is read from single requests. The
roll-ups say first how many there are: see ``billing.reports.tags``.

``tenant_id`` and ``project_id`` as in ``billing.reports.usage``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

from billing.ledger.latency_buckets import Latency
from billing.ledger.latency_buckets import latency as percentiles
from billing.ledger.rollups import Sums
from billing.models import NO_KEY
from billing.reports import latency, savings, tags
from billing.reports.usage import Column, rollups_in, series_at, summed
from tenants import cost_centres
from tenants.ids import TenantId
from tenants.models import ApiKey

By = Literal["tenant", "project", "key", "member", "model", "day", "cost_centre", "end_user", "tag"]
BY: tuple[str, ...] = get_args(By)
_ByColumn = Literal["tenant", "project", "key", "member", "model", "cost_centre"]
#: What of roll-ups the groups consist of.
_COLUMNS: Mapping[_ByColumn, Column] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "member": "key_id",
    "model": "model_name",
    "cost_centre": "project_id",
}


class LocalPeriod(Protocol):
    """A period of ``billing.reports.usage`` with the time zone whose days it has."""

    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime: ...
    @property
    def zone(self) -> ZoneInfo: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One tenant, project, key, member, model, day, cost centre, end user or value of a tag, with its requests.

    ``id`` is None but for tenants, projects and known keys. ``name`` is empty for usage without a cost centre, an end
    user or the tag, and of keys that no person made. Days are named as YYYY-MM-DD. Members are named by the number of
    their user, because a tenant's role reads no names of people: ``portal.reporting.member_names`` puts them in.
    """

    id: UUID | None
    name: str
    sums: Sums
    #: None for an end user and a tag's value, which roll-ups do not have, and where it was not asked for.
    latency: Latency | None


def grouped(
    period: LocalPeriod,
    tenant_id: TenantId | None,
    by: By,
    project_id: UUID | None = None,
    tag: str = "",
    *,
    timed: int | None = None,
) -> tuple[Group, ...]:
    """Return each group with requests, refused ones included: days in order, others with the highest amount first.

    ``tag``: the name of the tag to group by. ``timed``: only the first so many groups get their latency, which is most
    of the work where there are thousands. Raises TooManyRequests for a tag and for end users.
    """
    match by:
        case "tag" | "end_user":
            values = tags.by_value(period, tenant_id, project_id, tag if by == "tag" else None)
            return tuple(Group(id=None, name=name, sums=sums, latency=None) for name, sums in values)
        case "day":
            return _by_day(period, tenant_id, project_id)
        case "cost_centre" | "member" | "tenant" | "project" | "key" | "model":
            return _by_column(period, tenant_id, project_id, by, timed)


def days_of(period: LocalPeriod) -> tuple[datetime, ...]:
    """Return when each local day begins; the first may begin before the period."""
    local = period.start.astimezone(period.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    days: list[datetime] = []
    while local < period.end:
        days.append(local)
        local = (local.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=period.zone)
    return tuple(days)


def _by_day(period: LocalPeriod, tenant_id: TenantId | None, project_id: UUID | None) -> tuple[Group, ...]:
    days = days_of(period)
    points = series_at(period, tenant_id, days, project_id)
    histograms = latency.by_moment(period, tenant_id, project_id, days)
    return tuple(
        Group(
            id=None,
            name=f"{point.starts_at.astimezone(period.zone):%Y-%m-%d}",
            sums=point.sums,
            latency=percentiles(histograms.get(point.starts_at, {})),
        )
        for point in points
        if _is_used(point.sums)
    )


def _is_used(sums: Sums) -> bool:
    return sums.requests > 0 or sums.refused_requests > 0


def _by_column(
    period: LocalPeriod, tenant_id: TenantId | None, project_id: UUID | None, by: _ByColumn, timed: int | None
) -> tuple[Group, ...]:
    """Return groups of the values of a column. Several values may be one group, as keys are of their maker."""
    column = _COLUMNS[by]
    every = summed(rollups_in(period, tenant_id, project_id, by=column), column)
    found = {value: sums for value, sums in every.items() if _is_used(sums)}
    owners = _owners(by, found)
    totals: defaultdict[Any, Sums] = defaultdict(Sums)
    for value, sums in found.items():
        totals[owners[value]] += sums
    names = savings.names_of(by, totals) if by in {"tenant", "project", "key"} else {each: each for each in totals}
    groups = {
        owner: Group(
            id=owner if isinstance(owner, UUID) and owner != NO_KEY else None,
            name=names.get(owner, ""),
            sums=sums,
            latency=None,
        )
        for owner, sums in totals.items()
    }
    order = sorted(groups, key=lambda owner: (-totals[owner].amount_pico, groups[owner].name, str(groups[owner].id)))
    places = {owner: place for place, owner in enumerate(order[:timed])}
    timed_values = {value: places[owners[value]] for value in found if owners[value] in places}
    histograms = latency.by_group(period, tenant_id, project_id, column, timed_values)
    return tuple(
        replace(groups[owner], latency=percentiles(histograms.get(place, {}))) if owner in places else groups[owner]
        for place, owner in enumerate(order)
    )


def _owners(by: _ByColumn, found: Collection[Any]) -> dict[Any, Any]:
    """Return the group of each value: a rotated key is in that of its successor."""
    match by:
        case "key":
            return dict(savings.heirs_of(found))
        case "cost_centre":
            centres = cost_centres.of_projects(found)
            return {project: centres.get(project, "") for project in found}
        case "member":
            made = ApiKey.objects.filter(id__in=found, created_by__isnull=False)
            makers = dict(made.values_list("id", "created_by_id"))
            return {key_id: str(makers.get(key_id, "")) for key_id in found}
        case "tenant" | "project" | "model":
            return {value: value for value in found}

"""Usage of a period by tenant, project, key, member, model, day or cost centre, from roll-ups; by end user or tag.

Tags and end users may have any number of values, so roll-ups have none: usage by them is read from single requests. The
roll-ups say first how many there are: see ``billing.reports.tags``.

``tenant_id`` and ``project_id`` as in ``billing.reports.usage``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
_COLUMNS: Mapping[savings.By, Column] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model_name",
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
    #: None for an end user and a tag's value: roll-ups have neither.
    latency: Latency | None


def grouped(
    period: LocalPeriod, tenant_id: TenantId | None, by: By, project_id: UUID | None = None, tag: str = ""
) -> tuple[Group, ...]:
    """Return each group with requests, refused ones included: days in order, others with the highest amount first.

    ``tag``: the name of the tag to group by. Raises TooManyRequests for a tag and for end users.
    """
    match by:
        case "tag" | "end_user":
            values = tags.by_value(period, tenant_id, project_id, tag if by == "tag" else None)
            return tuple(Group(id=None, name=name, sums=sums, latency=None) for name, sums in values)
        case "day":
            return _by_day(period, tenant_id, project_id)
        case "cost_centre":
            found = _by_cost_centre(period, tenant_id, project_id)
        case "member":
            found = _by_member(period, tenant_id, project_id)
        case "tenant" | "project" | "key" | "model":
            found = _by_column(period, tenant_id, project_id, by)
    return tuple(sorted(found, key=lambda each: (-each.sums.amount_pico, each.name, str(each.id))))


def days_of(period: LocalPeriod) -> tuple[datetime, ...]:
    """Return when each local day begins; the first may begin before the period."""
    local = period.start.astimezone(period.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    days: list[datetime] = []
    while local < period.end:
        days.append(local)
        local = (local.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=period.zone)
    return tuple(days)


def _by_column(
    period: LocalPeriod, tenant_id: TenantId | None, project_id: UUID | None, by: savings.By
) -> tuple[Group, ...]:
    groups = savings.grouped(period, tenant_id, by, project_id, with_refused=True)
    histograms = latency.by_column(period, tenant_id, project_id, _COLUMNS[by])
    if by == "key":
        heirs = savings.heirs_of(histograms)
        histograms = _merged((heirs[key_id], histogram) for key_id, histogram in histograms.items())
    return tuple(
        Group(
            id=each.id,
            name=each.name,
            sums=each.sums,
            latency=percentiles(histograms.get(each.name if by == "model" else each.id or NO_KEY, {})),
        )
        for each in groups
    )


def _is_used(sums: Sums) -> bool:
    return sums.requests > 0 or sums.refused_requests > 0


def _merged(parts: Iterable[tuple[Any, Counter[int]]]) -> dict[Any, Counter[int]]:
    found: defaultdict[Any, Counter[int]] = defaultdict(Counter)
    for name, histogram in parts:
        found[name].update(histogram)
    return dict(found)


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


def _by_cost_centre(period: LocalPeriod, tenant_id: TenantId | None, project_id: UUID | None) -> tuple[Group, ...]:
    every = summed(rollups_in(period, tenant_id, project_id, by="project_id"), "project_id")
    found = {project: sums for project, sums in every.items() if _is_used(sums)}
    centres = cost_centres.of_projects(found)
    by_centre: defaultdict[str, Sums] = defaultdict(Sums)
    for project, sums in found.items():
        by_centre[centres.get(project, "")] += sums
    histograms = _merged(
        (centres.get(project, ""), histogram)
        for project, histogram in latency.by_column(period, tenant_id, project_id, "project_id").items()
    )
    return tuple(
        Group(id=None, name=name, sums=sums, latency=percentiles(histograms.get(name, {})))
        for name, sums in by_centre.items()
    )


def _by_member(period: LocalPeriod, tenant_id: TenantId | None, project_id: UUID | None) -> tuple[Group, ...]:
    every = summed(rollups_in(period, tenant_id, project_id, by="key_id"), "key_id")
    found = {key_id: sums for key_id, sums in every.items() if _is_used(sums)}
    makers = dict(ApiKey.objects.filter(id__in=found, created_by__isnull=False).values_list("id", "created_by_id"))
    names = {key_id: str(makers.get(key_id, "")) for key_id in found}
    by_member: defaultdict[str, Sums] = defaultdict(Sums)
    for key_id, sums in found.items():
        by_member[names[key_id]] += sums
    histograms = _merged(
        (names.get(key_id, ""), histogram)
        for key_id, histogram in latency.by_column(period, tenant_id, project_id, "key_id").items()
    )
    return tuple(
        Group(id=None, name=name, sums=sums, latency=percentiles(histograms.get(name, {})))
        for name, sums in by_member.items()
    )

"""Usage, charges and savings for pages and the management API.

``tenant_id`` None reports on all tenants, which only an operator may see; tenant-facing reads run inside
``tenants.database.rls.as_tenant``. ``project_id`` narrows a report to one project. Sums come from roll-ups, which the
drain updates with every batch, and cover tenants' requests; canaries appear only in the list of requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Literal, Protocol
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, Value

from billing.ledger.rollups import ERROR_STATES, REFUSED_STATUSES, SUMS, Sums, row_sums
from billing.ledger.usage_rows import BUCKET_SECONDS, UsageRow, moment_of, stored
from billing.models import (
    DailyPlatformRollup,
    DailyRollup,
    DailyTenantRollup,
    HalfHourlyPlatformRollup,
    HalfHourlyTenantRollup,
    UsageRecord,
    UsageRollup,
)
from billing.models.rollups import RollupSums
from billing.reports import long_periods
from tenants.database import rls
from tenants.ids import TenantId, first_id_at
from tenants.models import Tenant


class Period(Protocol):
    """From ``start`` to before ``end``; both aware, and on a quarter of an hour."""

    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step of a chart."""

    starts_at: datetime
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSums:
    """One tenant's totals."""

    tenant_id: TenantId
    slug: str
    sums: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSums:
    """One model's totals."""

    model_name: str
    sums: Sums


#: An attempt's id is made when it fails, before its request ends; the attempts that are read.
ATTEMPTS_WITHIN = timedelta(seconds=1)
MOST_ATTEMPTS = 20

#: Whose errors: failures of the platform, requests that were refused, or both.
Errors = Literal["platform", "client", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What to list; None: any."""

    start: datetime | None = None
    end: datetime | None = None
    project_id: UUID | None = None
    #: Any of these projects, and of these keys; empty: no request.
    project_ids: Sequence[UUID] | None = None
    key_ids: Sequence[UUID] | None = None
    model_name: str | None = None
    state: str | None = None
    cache_result: str | None = None
    finish_reason: str | None = None
    route_reason: str | None = None
    http_status: int | None = None
    error_code: str | None = None
    replica_id: UUID | None = None
    end_user: str | None = None
    purpose: str | None = UsageRecord.Purpose.TENANT
    errors: Errors | None = None
    #: The name and the value of one of the caller's tags.
    tag: tuple[str, str] | None = None
    #: A request's id, whatever its time, the first characters of one, or the id that its client sent.
    request_id: str | None = None


def totals(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> Sums:
    """Return the sums of a period."""
    return sum((sums_of(rows.aggregate(**TOTALS)) for rows in rollups_in(period, tenant_id, project_id)), Sums())


def series(
    period: Period, tenant_id: TenantId | None, step_seconds: int, project_id: UUID | None = None
) -> tuple[Point, ...]:
    """Return one point per step from the period's start, including empty ones; steps are whole quarters of an hour.

    Raises ValueError for other steps.
    """
    if step_seconds < BUCKET_SECONDS or step_seconds % BUCKET_SECONDS:
        raise ValueError(f"a step of {step_seconds} s is not a multiple of a quarter of an hour")
    step, start = timedelta(seconds=step_seconds), floor(period.start)
    count = -(-(period.end - start) // step)
    return series_at(period, tenant_id, [start + number * step for number in range(count)], project_id)


def series_at(
    period: Period, tenant_id: TenantId | None, moments: Sequence[datetime], project_id: UUID | None = None
) -> tuple[Point, ...]:
    """Return a point for each of these moments, in order, with what follows until the next; the last ends the period.

    All are on quarters of an hour, the first not after the period's start.
    """
    within = rollups_in(period, tenant_id, project_id, moments)
    found = summed((rows.annotate(place=place_among(moments)) for rows in within), "place")
    return tuple(
        Point(starts_at=moment, sums=found.get(number, Sums())) for number, moment in enumerate(moments, start=1)
    )


def place_among(moments: Sequence[datetime]) -> Func:
    """Return the expression for the number of the moments, from 1, after which a roll-up begins."""
    edges = Value(list(moments), output_field=ArrayField(DateTimeField()))
    return Func(F("starts_at"), edges, function="width_bucket", output_field=IntegerField())


def fine_series(period: Period, tenant_id: TenantId | None, moments: Sequence[datetime]) -> tuple[Point, ...]:
    """Return what :func:`series_at` does, from single requests: moments may be anywhere. For short periods only."""
    points = [Sums()] * len(moments)
    filters = Filters(start=moments[0], end=period.end)
    for record in _records(tenant_id).filter(_conditions(filters)).iterator():
        row = stored(record)
        number = bisect_right(moments, moment_of(row.id)) - 1
        points[number] += row_sums(row)
    return tuple(Point(starts_at=moment, sums=sums) for moment, sums in zip(moments, points, strict=True))


def by_tenant(period: Period) -> tuple[TenantSums, ...]:
    """Return each tenant with usage, highest amount first."""
    sums_by_id = summed(rollups_in(period, None, by="tenant_id"), "tenant_id")
    found = dict(sorted(sums_by_id.items(), key=lambda each: (-each[1].amount_pico, each[0])))
    slugs = dict(Tenant.objects.filter(id__in=found).values_list("id", "slug"))
    return tuple(
        TenantSums(tenant_id=TenantId(identity), slug=slugs.get(identity, ""), sums=sums)
        for identity, sums in found.items()
    )


def by_model(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> tuple[ModelSums, ...]:
    """Return each model with usage, highest amount first."""
    found = summed(rollups_in(period, tenant_id, project_id), "model_name")
    return tuple(
        ModelSums(model_name=name, sums=sums)
        for name, sums in sorted(found.items(), key=lambda each: (-each[1].amount_pico, each[0]))
    )


def requests(
    tenant_id: TenantId | None, *, before_id: UUID | None = None, limit: int = 50, filters: Filters | None = None
) -> tuple[UsageRow, ...]:
    """Return up to ``limit`` requests, newest first; the last one's id is the next page's ``before_id``."""
    return tuple(stored(record) for record in _newest(tenant_id, before_id, filters or Filters())[:limit])


def values(
    tenant_id: TenantId | None, columns: Sequence[str], *, before_id: UUID | None, limit: int, filters: Filters
) -> list[tuple[Any, ...]]:
    """Return these columns of what :func:`requests` returns, in less time."""
    return list(_newest(tenant_id, before_id, filters).values_list(*columns)[:limit])


def _newest(tenant_id: TenantId | None, before_id: UUID | None, filters: Filters) -> QuerySet[UsageRecord]:
    rows = _records(tenant_id).filter(_conditions(filters))
    return (rows if before_id is None else rows.filter(id__lt=before_id)).order_by("-id")


def request(tenant_id: TenantId | None, request_id: UUID, project_id: UUID | None = None) -> UsageRow | None:
    """Return one request, or None if it does not exist or is another tenant's or project's."""
    found = _records(tenant_id).filter(id=request_id)
    record = (found if project_id is None else found.filter(project_id=project_id)).first()
    return None if record is None else stored(record)


def attempts(tenant_id: TenantId, request_id: UUID, finished_at: datetime) -> tuple[UsageRow, ...]:
    """Return the attempts of a request that an engine failed on before its first byte, in order."""
    ids = (request_id, first_id_at(finished_at + ATTEMPTS_WITHIN))
    rows = _records(tenant_id).filter(id__range=ids, purpose=UsageRecord.Purpose.RETRY, source_id=request_id)
    return tuple(stored(record) for record in rows.order_by("id")[:MOST_ATTEMPTS])


def _conditions(filters: Filters) -> Q:
    found = Q(**{name: value for name in _EXACT if (value := getattr(filters, name)) is not None})
    if filters.project_ids is not None:
        found &= Q(project_id__in=filters.project_ids)
    if filters.key_ids is not None:
        found &= Q(key_id__in=filters.key_ids)
    if filters.start is not None:
        found &= Q(id__gte=first_id_at(filters.start))
    if filters.end is not None:
        found &= Q(id__lt=first_id_at(filters.end))
    if filters.tag is not None:
        found &= Q(tags__contains=dict([filters.tag]))
    if filters.errors is not None:
        found &= _ERRORS[filters.errors]
    if filters.errors or filters.error_code or (filters.http_status or 0) >= HTTPStatus.BAD_REQUEST:
        found &= _FAILED
    if filters.request_id is not None:
        found = _with_id(filters.request_id, found)
    # A boundary, not a wish: a request of another project stays out even if its id is given.
    return found if filters.project_id is None else found & Q(project_id=filters.project_id)


#: Filters that are columns.
_EXACT = (
    *("project_id", "model_name", "state", "cache_result", "finish_reason", "route_reason"),
    *("http_status", "error_code", "replica_id", "end_user", "purpose"),
)
#: Of every request that has an error, so that the index of these serves the search.
_FAILED = ~Q(state=UsageRecord.State.COMPLETE)
#: Clients see ids as UUIDs; other products write a prefix before theirs, and people copy it.
_ID_PREFIX = "req_"
#: Hexadecimal digits of an id's time: eight of them are a minute.
_LEAST_DIGITS = 8


def records_in(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> QuerySet[UsageRecord]:
    """Return the tenants' single requests of a period."""
    filters = Filters(start=floor(period.start), end=period.end, project_id=project_id)
    return _records(tenant_id).filter(_conditions(filters))


_REFUSED_STATUS = Q(http_status__gte=REFUSED_STATUSES.start, http_status__lt=REFUSED_STATUSES.stop)
#: As :func:`billing.ledger.rollups.is_error` and ``is_refused``.
PLATFORMS = Q(state__in=ERROR_STATES) & ~_REFUSED_STATUS
CLIENTS = Q(state=UsageRecord.State.REFUSED) | (Q(state__in=ERROR_STATES) & _REFUSED_STATUS)
_ERRORS: Mapping[Errors, Q] = {"platform": PLATFORMS, "client": CLIENTS, "all": PLATFORMS | CLIENTS}


def _with_id(text: str, others: Q) -> Q:
    """Return the condition for a request's id, which needs no other, or for the id that its client sent."""
    sent = others & Q(client_request_id=text) & ~Q(client_request_id="")
    ids = ids_beginning(text)
    if ids is None:
        return sent
    first, last = ids
    return sent | (Q(id=first) if first == last else others & Q(id__range=ids))


def ids_beginning(text: str) -> tuple[UUID, UUID] | None:
    """Return the first and the last id that begins with this text; both are equal for a whole id, None for no id."""
    digits = text.strip().lower().removeprefix(_ID_PREFIX).replace("-", "")
    if not _LEAST_DIGITS <= len(digits) <= 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def _records(tenant_id: TenantId | None) -> QuerySet[UsageRecord]:
    return UsageRecord.objects.all() if tenant_id is None else UsageRecord.objects.filter(tenant_id=tenant_id)


#: Roll-ups of quarters of an hour, half-hours or days. All have the same sums.
Rollups = QuerySet[Any]
#: What a report groups by; empty: nothing that only some roll-ups have.
Column = Literal["tenant_id", "project_id", "key_id", "model_name", ""]


def rollups_in(
    period: Period,
    tenant_id: TenantId | None,
    project_id: UUID | None = None,
    moments: Sequence[datetime] = (),
    *,
    by: Column = "",
) -> tuple[Rollups, ...]:
    """Return the roll-ups of a period, in up to three parts that share no request, for a report that groups ``by``.

    What is folded is read by days or half-hours if no moment lies within one. For a member who is confined to projects
    only roll-ups by key are read: row-level security leaves out the others' in those, and hides sums of the tenant.
    """
    narrowed: dict[str, UUID] = {} if tenant_id is None else {"tenant_id": tenant_id}
    if project_id is not None:
        narrowed["project_id"] = project_id
    has_keys = project_id is not None or by in {"project_id", "key_id"} or rls.is_confined()
    by_day = has_keys or not any(map(long_periods.is_within_day, moments))
    parts = long_periods.split(floor(period.start), period.end, moments, has_keys=has_keys, by_day=by_day)
    has_tenants = tenant_id is not None or by == "tenant_id"
    half_hourly = HalfHourlyTenantRollup if has_tenants else HalfHourlyPlatformRollup
    daily: type[RollupSums] = DailyRollup if has_keys else DailyTenantRollup if has_tenants else DailyPlatformRollup
    tables: tuple[tuple[type[RollupSums], Sequence[long_periods.Span]], ...] = (
        (daily if by_day else half_hourly, parts.days),
        (half_hourly, parts.half_hours),
        (UsageRollup, parts.rest),
    )
    return tuple(
        table._default_manager.filter(long_periods.within(spans), **narrowed) for table, spans in tables if spans
    )


def summed(parts: Iterable[Rollups], column: str) -> dict[Any, Sums]:
    """Return the sums of each value of a column."""
    found: dict[Any, Sums] = {}
    for rows in parts:
        for row in rows.values(column).annotate(**TOTALS).order_by():
            sums = sums_of(row)
            found[row[column]] = found[row[column]] + sums if row[column] in found else sums
    return found


def floor(moment: datetime) -> datetime:
    """Return the start of the quarter of an hour that contains a moment."""
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % BUCKET_SECONDS, tz=UTC)


#: Aggregates of roll-ups for :func:`sums_of`.
TOTALS = {name: Sum(name, default=0) for name in SUMS}


def sums_of(row: Mapping[str, Any]) -> Sums:
    """Return the totals of a row."""
    return Sums(**{name: int(row[name]) for name in SUMS})

"""Usage, charges and savings for pages and the management API.

``tenant_id`` None reports on all tenants, which only an operator may see; tenant-facing reads run inside
``tenants.rls.as_tenant``. Sums come from roll-ups, which the drain updates with every batch, and cover tenants'
requests; canaries appear only in the list of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from django.db.models import DateTimeField, DurationField, F, Func, Q, QuerySet, Sum, Value

from billing.ledger.rollups import ERROR_STATES, FIRST_ERROR_STATUS, SUMS, Sums
from billing.ledger.usage_rows import BUCKET_SECONDS, UsageRow, stored
from billing.models import UsageRecord, UsageRollup
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What to list; None: any."""

    start: datetime | None = None
    end: datetime | None = None
    project_id: UUID | None = None
    key_id: UUID | None = None
    model_name: str | None = None
    state: str | None = None
    cache_result: str | None = None
    purpose: str | None = UsageRecord.Purpose.TENANT
    errors_only: bool = False


def totals(period: Period, tenant_id: TenantId | None) -> Sums:
    """Return the sums of a period."""
    return sums_of(rollups_in(period, tenant_id).aggregate(**TOTALS))


def series(period: Period, tenant_id: TenantId | None, step_seconds: int) -> tuple[Point, ...]:
    """Return one point per step of the period, including empty ones; steps are whole quarters of an hour.

    Raises ValueError for other steps.
    """
    if step_seconds < BUCKET_SECONDS or step_seconds % BUCKET_SECONDS:
        raise ValueError(f"a step of {step_seconds} s is not a multiple of a quarter of an hour")
    step, start = timedelta(seconds=step_seconds), floor(period.start)
    bins = Func(
        Value(step, output_field=DurationField()),
        F("starts_at"),
        Value(start, output_field=DateTimeField()),
        function="date_bin",
        output_field=DateTimeField(),
    )
    rows = rollups_in(period, tenant_id).annotate(bin=bins).values("bin").annotate(**TOTALS).order_by("bin")
    found = {row["bin"]: sums_of(row) for row in rows}
    count = -(-(period.end - start) // step)
    return tuple(
        Point(starts_at=moment, sums=found.get(moment, Sums()))
        for moment in (start + number * step for number in range(count))
    )


def by_tenant(period: Period) -> tuple[TenantSums, ...]:
    """Return each tenant with usage, highest amount first."""
    rows = rollups_in(period, None).values("tenant_id").annotate(**TOTALS).order_by("-amount_pico", "tenant_id")
    found = {row["tenant_id"]: sums_of(row) for row in rows}
    slugs = dict(Tenant.objects.filter(id__in=found).values_list("id", "slug"))
    return tuple(
        TenantSums(tenant_id=TenantId(identity), slug=slugs.get(identity, ""), sums=sums)
        for identity, sums in found.items()
    )


def by_model(period: Period, tenant_id: TenantId | None) -> tuple[ModelSums, ...]:
    """Return each model with usage, highest amount first."""
    rows = rollups_in(period, tenant_id).values("model_name").annotate(**TOTALS)
    return tuple(
        ModelSums(model_name=row["model_name"], sums=sums_of(row))
        for row in rows.order_by("-amount_pico", "model_name")
    )


def requests(
    tenant_id: TenantId | None, *, before_id: UUID | None = None, limit: int = 50, filters: Filters | None = None
) -> tuple[UsageRow, ...]:
    """Return up to ``limit`` requests, newest first; the last one's id is the next page's ``before_id``."""
    rows = _records(tenant_id).filter(_conditions(filters or Filters()))
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return tuple(stored(record) for record in rows.order_by("-id")[:limit])


def request(tenant_id: TenantId | None, request_id: UUID) -> UsageRow | None:
    """Return one request, or None if it does not exist or is another tenant's."""
    record = _records(tenant_id).filter(id=request_id).first()
    return None if record is None else stored(record)


def _conditions(filters: Filters) -> Q:
    exact = ("project_id", "key_id", "model_name", "state", "cache_result", "purpose")
    found = Q(**{name: value for name in exact if (value := getattr(filters, name)) is not None})
    if filters.start is not None:
        found &= Q(id__gte=first_id_at(filters.start))
    if filters.end is not None:
        found &= Q(id__lt=first_id_at(filters.end))
    if filters.errors_only:
        found &= Q(http_status__gte=FIRST_ERROR_STATUS) | Q(state__in=ERROR_STATES)
    return found


def _records(tenant_id: TenantId | None) -> QuerySet[UsageRecord]:
    return UsageRecord.objects.all() if tenant_id is None else UsageRecord.objects.filter(tenant_id=tenant_id)


def rollups_in(period: Period, tenant_id: TenantId | None) -> QuerySet[UsageRollup]:
    """Return the roll-ups of a period."""
    found = UsageRollup.objects.filter(starts_at__gte=floor(period.start), starts_at__lt=period.end)
    return found if tenant_id is None else found.filter(tenant_id=tenant_id)


def floor(moment: datetime) -> datetime:
    """Return the start of the quarter of an hour that contains a moment."""
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % BUCKET_SECONDS, tz=UTC)


#: Aggregates of roll-ups for :func:`sums_of`.
TOTALS = {name: Sum(name, default=0) for name in SUMS}


def sums_of(row: Mapping[str, Any]) -> Sums:
    """Return the totals of a row."""
    return Sums(**{name: int(row[name]) for name in SUMS})

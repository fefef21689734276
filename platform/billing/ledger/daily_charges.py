"""What tenants' requests were charged for, summed by project, model, price and kind of charge; and those sums by day.

A statement needs more than roll-ups have: the price of each request, how it was charged, its priority. So the days of
an open month are added up for statements too, by the background role, and the statement reads the requests of what is
left alone: today, and the hours by which the tenant's month and a day in UTC differ.

A day's sums count while its :class:`FoldedDay` has ``has_charges``. A batch that adds to the day removes that row
(``billing.ledger.daily_rollups``), so a late request or price has the requests read again. Closing a month reads no
sums of days: its lines are those of requests that the ledger posted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import BigIntegerField, Case, CharField, Count, Exists, F, OuterRef, Q, QuerySet, Sum, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Round

from billing.ledger.daily_rollups import DAY
from billing.ledger.usage_rows import moment_of
from billing.models import DailyCharge, FoldedDay, UsageExport, UsageRecord
from billing.pricing.rating import FREE_BEFORE_FIRST_TOKEN
from tenants.ids import TenantId, first_id_at

#: Sums by name, with what they are of: ``project_id`` and what :data:`GROUPED` names.
Group = dict[str, Any]
GROUPED = ("model_name", "price_version_id", "currency", "charge", "priority")
_KEYS = (*GROUPED, "project_id")
_NS_PER_MS = 1_000_000
_COALESCED = Q(cache_result="coalesced")
_SENT = Q(ttft_ms__isnull=False) & ~Q(state__in=FREE_BEFORE_FIRST_TOKEN)
#: How a row was charged, as in ``billing.pricing.rating``.
_CHARGE = Case(
    When(amount_pico=None, then=Value("unrated")),
    When(cache_result="hit", then=Value("prediction_hit")),
    When(_COALESCED & (Q(state="complete") | _SENT), then=Value("coalesced")),
    When(_COALESCED | Q(state__in=FREE_BEFORE_FIRST_TOKEN, completion_tokens=0), then=Value("free")),
    default=Value("tokens"),
    output_field=CharField(),
)
#: A response that was cut short saves nothing.
_WHOLE = Q(state="complete")
#: Requests that pay the price of one, as in ``billing.pricing.rating``.
_PAID = Q(prompt_tokens__gt=0) | Q(cached_prompt_tokens__gt=0) | Q(completion_tokens__gt=0)
#: Streams that say how long engines needed for uncached prompt tokens (``billing.reports.model_savings``).
_STREAM = _WHOLE & Q(stream=True, ttft_ms__isnull=False, cache_result__in=("miss", "bypass"))
_TOKENS = Cast(F("prompt_tokens"), BigIntegerField())
_NS = Cast(Round((F("ttft_ms") - F("queue_ms")) * float(_NS_PER_MS)), BigIntegerField())
_SUMMED = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "amount_pico",
    "saved_prediction_pico",
    "saved_prefix_pico",
)
#: Sums over complete responses of what no engine had to process again.
AVOIDED = ("avoided_prompt_tokens", "avoided_cached_prompt_tokens", "avoided_completion_tokens")
_STREAM_SUMS: dict[str, Combinable] = {
    "stream_tokens": _TOKENS,
    "stream_tokens_squared": _TOKENS * _TOKENS,
    "stream_ns": _NS,
    "stream_tokens_ns": _TOKENS * _NS,
}
#: Aggregates of requests. Those that are named as a column are last: from there on its name means the aggregate.
_AGGREGATES: dict[str, Any] = {
    "requests": Count("id"),
    "paid_requests": Count("id", filter=_PAID),
    "engine_ms": Sum(Cast(Round("avoided_engine_ms"), BigIntegerField()), filter=_WHOLE, default=0),
    "streams": Count("id", filter=_STREAM),
    **{name: Sum(of, filter=_STREAM, default=0) for name, of in _STREAM_SUMS.items()},
    **{name: Sum(name, default=0) for name in _SUMMED},
    **{name: Sum(name, filter=_WHOLE, default=0) for name in AVOIDED},
}
SUMS = tuple(_AGGREGATES)
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('daily_charges'))"
#: With less, PostgreSQL sorts the day's requests on disk.
_MEMORY = "SET LOCAL work_mem = '64MB'"
_INSERT = f"INSERT INTO billing_dailycharge (starts_at, tenant_id, {', '.join((*_KEYS, *SUMS))}) {{}}"


def of_tenants() -> QuerySet[UsageRecord]:
    """Return the requests that may be charged: those of tenants that ran."""
    return UsageRecord.objects.filter(purpose=UsageRecord.Purpose.TENANT, refusals=0)


def summed(rows: QuerySet[UsageRecord]) -> list[Group]:
    """Return the sums of these requests, one group for each value of what they are grouped by."""
    found = rows.annotate(charge=_CHARGE).values(*_KEYS).annotate(**_AGGREGATES).order_by()
    return [dict(group) for group in found]


def between(
    tenant_id: TenantId, first: UUID, behind: UUID, project_id: UUID | None, without: Sequence[UUID]
) -> list[Group]:
    """Return the sums of a tenant's requests with ids from ``first`` to before ``behind``, but for those ``without``.

    Sums of days and of requests are groups of their own: several may be of the same values. Some take away what
    sums of days have of requests that are left out.
    """
    own = of_tenants().filter(tenant_id=tenant_id)
    days = DailyCharge.objects.filter(tenant_id=tenant_id)
    if project_id is not None:
        own, days = own.filter(project_id=project_id), days.filter(project_id=project_id)
    folded = _folded(first, behind)
    found: list[Group] = []
    if folded:
        sums = days.filter(starts_at__in=folded).values(*_KEYS)
        found += [dict(group) for group in sums.annotate(**{name: Sum(name) for name in SUMS}).order_by()]
    inside = _spans(folded)
    if out := [each for each in without if any(begin <= each < end for begin, end in inside)]:
        taken = summed(own.filter(id__gte=min(out), id__lte=max(out), id__in=out))
        found += [group | {name: -group[name] for name in SUMS} for group in taken]
    if rest := _between(first, behind, inside):
        rows = own.filter(reduce(or_, (Q(id__gte=begin, id__lt=end) for begin, end in rest)))
        found += summed(rows.exclude(id__in=without) if without else rows)
    return [group for group in found if group["requests"]]


def waiting() -> list[datetime]:
    """Return the folded days whose charges are not summed, newest first. Those whose requests are deleted never are."""
    retired = UsageExport.objects.filter(
        retired_at__isnull=False, begins_at__lt=OuterRef("starts_at") + DAY, ends_at__gt=OuterRef("starts_at")
    )
    days = FoldedDay.objects.filter(~Exists(retired), folded_at__isnull=False, has_charges=False)
    return list(days.order_by("-starts_at").values_list("starts_at", flat=True))


@transaction.atomic
def write(day: datetime) -> bool:
    """Sum the charges of a folded day; return whether they count: not if a batch added to the day meanwhile.

    A batch does not wait for it. The day may even be folded again by then, so it counts only as it was folded before.
    """
    folded = FoldedDay.objects.filter(starts_at=day, folded_at__isnull=False)
    folded_at = folded.values_list("folded_at", flat=True).first()
    if folded_at is None:
        return False
    _sum(day)
    return bool(folded.filter(folded_at=folded_at).update(has_charges=True))


def _sum(day: datetime) -> None:
    rows = of_tenants().filter(id__gte=first_id_at(day), id__lt=first_id_at(day + DAY)).annotate(charge=_CHARGE)
    keys = ("day", "tenant_id", *_KEYS)
    sums = rows.annotate(day=Value(day)).values(*keys).annotate(**_AGGREGATES).order_by()
    select, parameters = sums.values_list(*keys, *SUMS).query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_LOCK)
        cursor.execute(_MEMORY)
        DailyCharge.objects.filter(starts_at=day).delete()
        cursor.execute(_INSERT.format(select), parameters)


def _folded(first: UUID, behind: UUID) -> list[datetime]:
    """Return the days within a range of ids whose sums count, in order."""
    days = FoldedDay.objects.filter(folded_at__isnull=False, has_charges=True)
    within = days.filter(starts_at__gte=moment_of(first), starts_at__lte=moment_of(behind) - DAY)
    return list(within.order_by("starts_at").values_list("starts_at", flat=True))


def _spans(days: Sequence[datetime]) -> list[tuple[UUID, UUID]]:
    return [(first_id_at(day), first_id_at(day + DAY)) for day in days]


def _between(first: UUID, behind: UUID, spans: Sequence[tuple[UUID, UUID]]) -> list[tuple[UUID, UUID]]:
    """Return what of a range is in none of these spans, which are in order."""

    def gaps() -> Iterator[tuple[UUID, UUID]]:
        begin = first
        for start, end in spans:
            yield begin, start
            begin = end
        yield begin, behind

    return [(begin, end) for begin, end in gaps() if begin < end]

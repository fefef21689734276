"""One tenant's usage in buckets of time, split by project, key and model: what OpenAI's admin API reports.

Buckets of quarters of an hour and more are sums of roll-ups, which outlive the requests that they sum. Shorter ones are
sums of requests. Both count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, cast
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import Case, DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, UUIDField, Value, When

from billing.errors import TooManyRequests
from billing.ledger.rollups import ERROR_STATES, REFUSED_STATUSES
from billing.ledger.usage_rows import BUCKET_SECONDS
from billing.models import UsageRecord, UsageRollup
from billing.reports.usage import floor
from tenants.ids import TenantId, first_id_at

#: What usage can be split by.
Column = Literal["project_id", "key_id", "model_name"]
#: The most groups of all buckets that are returned at once.
MOST_GROUPS = 10_000
#: Single requests that are read for buckets of minutes: about two seconds of PostgreSQL.
MOST_REQUESTS = 2_000_000
_SUMS = (
    "requests",
    "prompt_tokens",
    "cache_write_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "amount_pico",
)
_IS_ERROR = Q(state__in=ERROR_STATES) & ~Q(
    http_status__gte=REFUSED_STATUSES.start, http_status__lt=REFUSED_STATUSES.stop
)
#: As ``billing.ledger.rollups``: refusals before a request ran are none, unless the platform failed.
_REQUESTS = Case(
    When(refusals=0, then=Value(1)), When(_IS_ERROR, then=F("refusals")), default=0, output_field=IntegerField()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Whose usage to sum; None: any. ``without_models`` are left out."""

    project_ids: frozenset[UUID] | None = None
    key_ids: frozenset[UUID] | None = None
    model_names: frozenset[str] | None = None
    without_models: frozenset[str] = frozenset()

    def only(self, names: frozenset[str]) -> Selection:
        """Return the part of it that is about these models."""
        return replace(self, model_names=names if self.model_names is None else self.model_names & names)

    def without(self, names: frozenset[str]) -> Selection:
        """Return the part of it that is not about these models."""
        return replace(self, without_models=self.without_models | names)

    def condition(self) -> Q:
        """Return the filter, of roll-ups and of requests alike."""
        found = Q()
        for column, chosen in (
            ("project_id", self.project_ids),
            ("key_id", self.key_ids),
            ("model_name", self.model_names),
        ):
            if chosen is not None:
                found &= Q(**{f"{column}__in": chosen})
        return found & ~Q(model_name__in=self.without_models) if self.without_models else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The usage of one group in one bucket; None: not split by it.

    ``prompt_tokens`` leaves out the cached ones; ``cache_write_tokens`` are part of it.
    """

    project_id: UUID | None
    key_id: UUID | None
    model_name: str | None
    requests: int
    prompt_tokens: int
    cache_write_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    amount_pico: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """From ``start`` to before ``end``; without usage it has no groups."""

    start: datetime
    end: datetime
    groups: tuple[Group, ...]


def empty(edges: Sequence[datetime]) -> tuple[Bucket, ...]:
    """Return the bucket between each two edges, without usage."""
    return tuple(Bucket(start=start, end=end, groups=()) for start, end in pairwise(edges))


def models_used(tenant_id: TenantId, start: datetime, end: datetime) -> frozenset[str]:
    """Return the names of the models with usage in the quarters of an hour that a period touches."""
    rows = UsageRollup.objects.filter(tenant_id=tenant_id, starts_at__gte=floor(start), starts_at__lt=end)
    return frozenset(rows.order_by().values_list("model_name", flat=True).distinct())


def buckets(
    tenant_id: TenantId, edges: Sequence[datetime], by: Sequence[Column], selection: Selection
) -> tuple[Bucket, ...]:
    """Return the bucket between each two edges, in order; groups are sorted by what they are split by.

    Buckets whose edges are not on quarters of an hour are read from single requests. Raises TooManyRequests for those.

    Fewer buckets, and at least one, are returned if together they have more than MOST_GROUPS groups; none, if the first
    one alone has more.
    """
    on_quarters = all(int(edge.timestamp()) % BUCKET_SECONDS == 0 for edge in edges)
    rows = _rollups(tenant_id, edges) if on_quarters else _requests(tenant_id, edges)
    summed = (
        rows.filter(selection.condition())
        .values("place", *by)
        .annotate(**{name: Sum(column, default=0) for name, column in _columns(on_quarters).items()})
        .order_by("place", *by)
    )
    found: dict[int, list[Group]] = {}
    whole = len(edges) - 1
    for count, row in enumerate(summed[: MOST_GROUPS + 1]):
        if count == MOST_GROUPS:
            whole = row["place"] - 1
        elif row["requests"]:
            found.setdefault(row["place"], []).append(_group(row, by))
    shown = empty(edges)[:whole]
    return tuple(replace(each, groups=tuple(found.get(place, ()))) for place, each in enumerate(shown, start=1))


def _columns(from_rollups: bool) -> dict[str, Any]:
    return {name: F(name) if from_rollups or name != "requests" else _REQUESTS for name in _SUMS}


def _rollups(tenant_id: TenantId, edges: Sequence[datetime]) -> QuerySet[Any]:
    found = UsageRollup.objects.filter(tenant_id=tenant_id, starts_at__gte=edges[0], starts_at__lt=edges[-1])
    return found.annotate(place=_place("starts_at", list(edges), ArrayField(DateTimeField())))


def _requests(tenant_id: TenantId, edges: Sequence[datetime]) -> QuerySet[Any]:
    """Return the requests with the place of their bucket. Raises TooManyRequests."""
    known = UsageRollup.objects.filter(tenant_id=tenant_id, starts_at__gte=floor(edges[0]), starts_at__lt=edges[-1])
    requests = sum(known.aggregate(ran=Sum("requests", default=0), refused=Sum("refused_requests", default=0)).values())
    if requests > MOST_REQUESTS:
        raise TooManyRequests(requests, MOST_REQUESTS)
    ids = [first_id_at(edge) for edge in edges]
    found = UsageRecord.objects.filter(
        tenant_id=tenant_id, purpose=UsageRecord.Purpose.TENANT, id__gte=ids[0], id__lt=ids[-1]
    )
    return found.annotate(place=_place("id", ids, ArrayField(UUIDField())))


def _place(column: str, edges: list[Any], kind: ArrayField[Any, Any]) -> Func:
    return Func(F(column), Value(edges, output_field=kind), function="width_bucket", output_field=IntegerField())


def _group(row: dict[str, Any], by: Sequence[Column]) -> Group:
    return Group(
        project_id=cast("UUID | None", row["project_id"] if "project_id" in by else None),
        key_id=cast("UUID | None", row["key_id"] if "key_id" in by else None),
        model_name=cast("str | None", row["model_name"] if "model_name" in by else None),
        **{name: int(row[name]) for name in _SUMS},
    )

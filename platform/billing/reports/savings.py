"""What the prediction cache and the prefix cache each saved, in tokens, money and engine time, from roll-ups.

``tenant_id`` as in ``billing.reports.usage``. Roll-ups that do not distinguish keys have the key NO_KEY.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum

from billing.ledger.rollups import Sums
from billing.models import NO_KEY, BypassRollup, DailyBypassRollup, UsageRecord
from billing.reports import long_periods
from billing.reports.usage import Column, Period, floor, rollups_in, summed
from tenants.database import rls
from tenants.ids import TenantId, first_id_at
from tenants.keys import keys
from tenants.models import ApiKey, Project, Tenant

By = Literal["tenant", "project", "key", "model"]
BY: tuple[str, ...] = get_args(By)
_COLUMNS: Mapping[By, Column] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model_name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Whole responses: how many requests got one without running on an engine, and what that avoided."""

    hits: int = 0
    coalesced: int = 0
    misses: int = 0
    bypassed: int = 0
    tokens: int = 0
    engine_ms: int = 0
    pico: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Prompt tokens that an engine had cached, of requests that ran on it."""

    requests: int = 0
    tokens: int = 0
    pico: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Savings of both caches over ``requests``."""

    requests: int
    prediction: Prediction
    prefix: Prefix

    @classmethod
    def of(cls, sums: Sums) -> Self:
        """Split the sums of a period by cache."""
        looked_up = sums.requests - sums.bypassed_requests
        return cls(
            requests=sums.requests,
            prediction=Prediction(
                hits=sums.prediction_hits,
                coalesced=sums.coalesced_requests,
                misses=looked_up - sums.prediction_hits - sums.coalesced_requests,
                bypassed=sums.bypassed_requests,
                tokens=sums.avoided_tokens,
                engine_ms=sums.avoided_engine_ms,
                pico=sums.saved_prediction_pico,
            ),
            prefix=Prefix(requests=sums.prefix_hits, tokens=sums.cached_prompt_tokens, pico=sums.saved_prefix_pico),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One tenant, project, key or model. ``id`` is None for a model and for usage without a known key."""

    id: UUID | None
    name: str
    sums: Sums

    @property
    def savings(self) -> Savings:
        """What the caches saved for it."""
        return Savings.of(self.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class BypassCount:
    """How many requests bypassed the prediction cache for one reason (``caching.bypass``)."""

    reason: str
    requests: int


def grouped(period: Period, tenant_id: TenantId | None, by: By, project_id: UUID | None = None) -> tuple[Group, ...]:
    """Return each group with requests, highest prediction saving first. A rotated key counts with its successor."""
    column = _COLUMNS[by]
    every = summed(rollups_in(period, tenant_id, project_id, by=column), column)
    # Without requests: refusals only, of a model or key that may not even exist.
    found = {name: sums for name, sums in every.items() if sums.requests}
    if by == "model":
        groups = [Group(id=None, name=name, sums=sums) for name, sums in found.items()]
    else:
        if by == "key":
            found = _with_heirs(found)
        names = names_of(by, found)
        groups = [
            Group(id=None if identity == NO_KEY else identity, name=names.get(identity, ""), sums=sums)
            for identity, sums in found.items()
        ]
    return tuple(sorted(groups, key=lambda each: (-each.sums.saved_prediction_pico, each.name, str(each.id))))


def bypasses(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> tuple[BypassCount, ...]:
    """Return why requests bypassed the prediction cache, most frequent reason first.

    Roll-ups of reasons do not distinguish projects, so those of a project, or of a confined member's projects, are
    counted in its requests.
    """
    if tenant_id is not None and (project_id is not None or rls.is_confined()):
        return _bypasses_of_projects(period, tenant_id, project_id)
    counts: Counter[str] = Counter()
    for rows in _bypass_rollups(period, tenant_id):
        for reason, requests in rows.values_list("reason").annotate(total=Sum("requests")):
            counts[reason] += int(requests)
    found = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(BypassCount(reason=reason, requests=requests) for reason, requests in found)


def _bypass_rollups(period: Period, tenant_id: TenantId | None) -> Iterator[QuerySet[Any]]:
    """Yield the roll-ups of a period, in parts: those of all tenants of whole days where they can be."""
    start = floor(period.start)
    if tenant_id is not None:
        yield BypassRollup.objects.filter(starts_at__gte=start, starts_at__lt=period.end, tenant_id=tenant_id)
        return
    parts = long_periods.split(start, period.end, has_keys=True)
    if parts.days:
        yield DailyBypassRollup.objects.filter(long_periods.within(parts.days))
    if parts.rest:
        yield BypassRollup.objects.filter(long_periods.within(parts.rest))


def _bypasses_of_projects(period: Period, tenant_id: TenantId, project_id: UUID | None) -> tuple[BypassCount, ...]:
    rows = UsageRecord.objects.filter(
        Q() if project_id is None else Q(project_id=project_id),
        tenant_id=tenant_id,
        purpose=UsageRecord.Purpose.TENANT,
        cache_result="bypass",
        refusals=0,
        id__gte=first_id_at(floor(period.start)),
        id__lt=first_id_at(period.end),
    )
    counted = rows.values("cache_reason").annotate(total=Count("id")).order_by("-total", "cache_reason")
    return tuple(BypassCount(reason=row["cache_reason"], requests=int(row["total"])) for row in counted)


def names_of(by: str, found: Collection[UUID]) -> dict[UUID, str]:
    """Return the slugs of these tenants or projects, or the names of keys."""
    if by == "tenant":
        return dict(Tenant.objects.filter(id__in=found).values_list("id", "slug"))
    if by == "project":
        return dict(Project.objects.filter(id__in=found).values_list("id", "slug"))
    return dict(ApiKey.objects.filter(id__in=found).values_list("id", "name"))


def heirs_of(found: Collection[UUID]) -> dict[UUID, UUID]:
    """Return for each of these keys its newest successor among them, or itself; ids are UUIDv7."""
    lines = keys.lineages(key_id for key_id in found if key_id != NO_KEY)
    heirs = {key_id: key_id for key_id in found}
    for heir in sorted(lines):
        heirs |= dict.fromkeys(lines[heir] & set(found), heir)
    return heirs


def _with_heirs(found: Mapping[UUID, Sums]) -> dict[UUID, Sums]:
    """Add the sums of each rotated key to its newest successor."""
    heirs = heirs_of(found)
    summed: dict[UUID, Sums] = {}
    for key_id, sums in found.items():
        heir = heirs.get(key_id, key_id)
        summed[heir] = summed[heir] + sums if heir in summed else sums
    return summed

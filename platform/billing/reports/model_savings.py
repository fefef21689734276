"""What the prediction cache and engines' prefix caches saved in a month, by model.

A request counts for one cache only: a hit or a coalesced response for the prediction cache, any other for the prefix
cache. Money is at the prices that the tenant pays. Engine time that prediction saved is what the original requests
took. That of the prefix cache is estimated: cached tokens times the time that engines needed for one more uncached
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import RegrSlope
from django.db.models import Count, F, Q

from billing.models import UsageRecord
from billing.pricing.classes import WITHOUT_ENGINE
from tenants.ids import TenantId

#: Fewer measured streams say nothing about a model's prefill.
FEWEST_STREAMS = 20
_NS_PER_MS = 10**6
_AVOIDED = ("avoided_prompt_tokens", "avoided_cached_prompt_tokens", "avoided_completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSavings:
    """What both caches saved of one model; ``prediction_…`` covers hits and coalesced responses together.

    ``prefill_ns``: engine time per uncached prompt token, in nanoseconds; None: not measured.
    """

    model_name: str
    prediction_hits: int = 0
    coalesced_requests: int = 0
    prediction_tokens: int = 0
    prediction_engine_ms: int = 0
    prediction_pico: int = 0
    prefix_tokens: int = 0
    prefix_pico: int = 0
    prefill_ns: int | None = None

    @property
    def prefix_engine_ms(self) -> int | None:
        """The estimated engine time that the prefix cache saved; None: the prefill was not measured."""
        if not self.prefix_tokens:
            return 0
        return None if self.prefill_ns is None else self.prefix_tokens * self.prefill_ns // _NS_PER_MS

    @property
    def saved_pico(self) -> int:
        """What both saved together."""
        return self.prediction_pico + self.prefix_pico

    @property
    def is_any(self) -> bool:
        """Whether a cache saved anything."""
        return any(getattr(self, each.name) for each in fields(self) if each.name not in {"model_name", "prefill_ns"})


def by_model(groups: Iterable[Mapping[str, Any]]) -> tuple[ModelSavings, ...]:
    """Return the savings of a statement's groups, by name of the model; models without any are left out."""
    found: dict[str, ModelSavings] = {}
    for group in groups:
        before = found.get(group["model_name"], ModelSavings(model_name=group["model_name"]))
        found[before.model_name] = _added(before, group)
    return tuple(found[name] for name in sorted(found) if found[name].is_any)


def measured(
    rows: tuple[ModelSavings, ...], tenant_id: TenantId, first: UUID, behind: UUID, project_id: UUID | None = None
) -> tuple[ModelSavings, ...]:
    """Return the rows with each model's prefill, measured on the tenant's streams with ids in this range.

    It is the slope of the time to the first token, without the queue, over uncached prompt tokens: what one more token
    took, without what every request takes.
    """
    names = [row.model_name for row in rows if row.prefix_tokens]
    if not names:
        return rows
    streams = UsageRecord.objects.filter(
        tenant_id=tenant_id,
        id__gte=first,
        id__lt=behind,
        model_name__in=names,
        purpose=UsageRecord.Purpose.TENANT,
        state=UsageRecord.State.COMPLETE,
        cache_result__in=("miss", "bypass"),
        stream=True,
        ttft_ms__isnull=False,
    )
    if project_id is not None:
        streams = streams.filter(project_id=project_id)
    slopes = dict(
        streams.values("model_name")
        .annotate(count=Count("id"), slope=RegrSlope(F("ttft_ms") - F("queue_ms"), F("prompt_tokens")))
        .filter(Q(count__gte=FEWEST_STREAMS) & Q(slope__gt=0))
        .order_by()
        .values_list("model_name", "slope")
    )
    return tuple(
        replace(row, prefill_ns=round(slopes[row.model_name] * _NS_PER_MS)) if row.model_name in slopes else row
        for row in rows
    )


def _added(before: ModelSavings, group: Mapping[str, Any]) -> ModelSavings:
    charge = group["charge"]
    if charge in WITHOUT_ENGINE:
        requests = "prediction_hits" if charge == "prediction_hit" else "coalesced_requests"
        return replace(
            before,
            **{requests: getattr(before, requests) + group["requests"]},
            prediction_tokens=before.prediction_tokens + sum(group[name] for name in _AVOIDED),
            prediction_engine_ms=before.prediction_engine_ms + int(group["engine_ms"]),
            prediction_pico=before.prediction_pico + int(group["saved_prediction_pico"]),
        )
    if charge != "tokens":
        return before
    return replace(
        before,
        prefix_tokens=before.prefix_tokens + group["cached_prompt_tokens"],
        prefix_pico=before.prefix_pico + int(group["saved_prefix_pico"]),
    )

"""How good routing was in a period: why it chose replicas, and how many cached tokens it predicted and engines had.

Read from single requests that an engine ran. The roll-ups say first how many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Abs

from billing.errors import TooManyRequests
from billing.reports.usage import Period, records_in, totals

#: Requests of a period that are read: about two seconds of PostgreSQL.
MOST_REQUESTS = 2_000_000
#: Replicas and models that are listed, those with the most requests.
MOST_GROUPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingGroup:
    """Requests that were routed for one reason, or to one replica, or of one model.

    Tokens are those of prompts. ``off_tokens`` is the sum of the differences between prediction and count, whichever
    was larger. ``counted_tokens`` are the prompt tokens of the requests with a prediction.
    """

    reason: str = ""
    model: str = ""
    replica_id: UUID | None = None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    off_tokens: int
    counted_tokens: int

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens that engines had cached, 0 to 1; None without tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def predicted_share(self) -> float | None:
        """The share of prompt tokens that routing expected to be cached; None without a prediction."""
        return self.predicted_tokens / self.counted_tokens if self.counted_tokens else None

    @property
    def off_share(self) -> float | None:
        """By how much predictions were off, as a share of prompt tokens; None without a prediction."""
        return self.off_tokens / self.counted_tokens if self.counted_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingQuality:
    """A period's routing: in all, by reason, by model, and by replica with its model; the most requests first."""

    total: RoutingGroup
    by_reason: tuple[RoutingGroup, ...]
    by_model: tuple[RoutingGroup, ...]
    by_replica: tuple[RoutingGroup, ...]


def read(period: Period) -> RoutingQuality:
    """Return the routing of all tenants' requests of a period. Raises TooManyRequests."""
    known = totals(period, None)
    if (requests := known.requests) > MOST_REQUESTS:
        raise TooManyRequests(requests, MOST_REQUESTS)
    rows: QuerySet[Any] = records_in(period, None).exclude(route_reason="").filter(refusals=0, replica_id__isnull=False)
    # Read once: groups of groups are added up here.
    names = {"reason": F("route_reason"), "model": F("model_name"), "replica": F("replica_id")}
    found: list[dict[str, Any]] = list(rows.values(**names).annotate(**_SUMS).order_by())
    return RoutingQuality(
        total=next(iter(_grouped(found)), _group({}, [])),
        by_reason=_grouped(found, "reason"),
        by_model=_grouped(found, "model"),
        by_replica=_grouped(found, "replica", "model"),
    )


def _grouped(rows: Iterable[dict[str, Any]], *names: str) -> tuple[RoutingGroup, ...]:
    parts: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        parts[tuple(row[name] for name in names)].append(row)
    groups = [(key, _group(dict(zip(names, key, strict=True)), each)) for key, each in parts.items()]
    groups.sort(key=lambda each: (-each[1].requests, *map(str, each[0])))
    return tuple(group for _, group in groups[:MOST_GROUPS])


def _group(names: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> RoutingGroup:
    sums = {name: sum(int(row[name] or 0) for row in rows) for name in _SUMS}
    return RoutingGroup(
        reason=names.get("reason", ""),
        model=names.get("model", ""),
        replica_id=names.get("replica"),
        prompt_tokens=sums.pop("all_tokens"),
        **sums,
    )


_PROMPT = F("prompt_tokens") + F("cached_prompt_tokens")
_PREDICTED = Q(predicted_cached_tokens__isnull=False)
#: The sums of a group, by the names of its fields. A column is no longer reached under a name that a sum has taken.
_SUMS: dict[str, Any] = {
    "requests": Count("id"),
    "cached_tokens": Sum("cached_prompt_tokens"),
    "predicted_tokens": Sum("predicted_cached_tokens"),
    "off_tokens": Sum(Abs(F("predicted_cached_tokens") - F("cached_prompt_tokens")), filter=_PREDICTED),
    "counted_tokens": Sum(_PROMPT, filter=_PREDICTED),
    "all_tokens": Sum(_PROMPT),
}

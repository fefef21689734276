"""A tenant's recent peak usage: its busiest quarter of an hour, from roll-ups."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import F, Sum

from billing.ledger.usage_rows import BUCKET_SECONDS
from billing.models import UsageRollup

MINUTES = BUCKET_SECONDS // 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests and tokens per minute, averaged over the busiest quarter of an hour, rounded up."""

    requests_per_minute: int
    tokens_per_minute: int


@dataclass(frozen=True, slots=True)
class Quarter:
    """One project's use of one model in one quarter of an hour."""

    starts_at: datetime
    project_id: UUID
    model_name: str
    requests: int
    tokens: int


def quarters(tenant_id: UUID, since: datetime) -> list[Quarter]:
    """Return a tenant's quarters of an hour from ``since`` on."""
    tokens = Sum(F("prompt_tokens") + F("cached_prompt_tokens") + F("completion_tokens"))
    rows = UsageRollup.objects.filter(tenant_id=tenant_id, starts_at__gte=since).order_by()
    figures = rows.values_list("starts_at", "project_id", "model_name").annotate(sent=Sum("requests"), tokens=tokens)
    return [Quarter(*row[:3], *map(int, row[3:])) for row in figures]


def busiest(found: list[Quarter], *, project_id: UUID | None = None, model_name: str = "") -> Rate:
    """Return the rate of the busiest of these quarters, for one project or model, or for all."""
    requests: defaultdict[datetime, int] = defaultdict(int)
    tokens: defaultdict[datetime, int] = defaultdict(int)
    for each in found:
        if project_id in {None, each.project_id} and model_name in {"", each.model_name}:
            requests[each.starts_at] += each.requests
            tokens[each.starts_at] += each.tokens
    return Rate(
        requests_per_minute=-(-max(requests.values(), default=0) // MINUTES),
        tokens_per_minute=-(-max(tokens.values(), default=0) // MINUTES),
    )

"""What the advisor looks at: sketches of a tenant's prompts, each with the request's usage row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from redis import RedisError

from billing.models import UsageRecord
from portal import redis_clients
from routing.prefixes import prompt_sketch
from routing.prefixes.prompt_sketch import KEPT_SECONDS, PromptSketch
from tenants.ids import TenantId
from tenants.isolation import keyspace

#: A page does not wait longer for Redis.
TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A request that an engine ran: the columns of its usage row that advice is made of."""

    id: UUID
    project_id: UUID
    key_id: UUID
    model_name: str
    revision_id: UUID
    started_at: datetime
    finished_at: datetime
    state: str
    cache_result: str
    cache_reason: str
    prompt_tokens: int
    cached_prompt_tokens: int
    amount_pico: int | None
    priority: str

    @property
    def all_prompt_tokens(self) -> int:
        """Its prompt's tokens, cached or not."""
        return self.prompt_tokens + self.cached_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One request and the sketch of its prompt."""

    ran: Ran
    sketch: PromptSketch

    @property
    def tokens_per_byte(self) -> float:
        """How many of the engine's tokens a byte of its prompt is."""
        return self.ran.all_prompt_tokens / max(1, self.sketch.ends[-1])


_COLUMNS = tuple(Ran.__dataclass_fields__)


def sketches_of(tenant_id: TenantId) -> list[PromptSketch] | None:
    """Return what gateways keep of the last days; None while Redis is unavailable."""
    since = (timezone.now() - timedelta(seconds=KEPT_SECONDS)).timestamp()
    try:
        redis = redis_clients.client(settings.REDIS_CACHE_URL, TIMEOUT_SECONDS)
        items = redis.zrangebyscore(keyspace.tenant_key(tenant_id, prompt_sketch.ROOM), since, "+inf")
    except RedisError:
        return None
    return prompt_sketch.decode(cast("list[bytes]", items))


def with_usage(
    tenant_id: TenantId, sketches: list[PromptSketch], project_id: UUID | None = None
) -> tuple[Observed, ...]:
    """Return the sketches whose requests have ended, with their usage, in the order of the requests."""
    by_id = {each.request_id: each for each in sketches}
    if not by_id:
        return ()
    found = UsageRecord.objects.filter(
        tenant_id=tenant_id,
        purpose=UsageRecord.Purpose.TENANT,
        id__in=list(by_id),
        id__gte=min(by_id),
        id__lte=max(by_id),
    )
    if project_id is not None:
        found = found.filter(project_id=project_id)
    rows = (Ran(**dict(zip(_COLUMNS, row, strict=True))) for row in found.order_by("id").values_list(*_COLUMNS))
    return tuple(Observed(ran=row, sketch=by_id[row.id]) for row in rows)

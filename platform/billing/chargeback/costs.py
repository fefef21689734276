"""What engines cost in a month of UTC: by deployment and million tokens, and the margin by tenant and model.

A deployment costs the hours that its replicas had slots, used or not, at what an hour of their pools' slots costs. That
cost is divided among tenants and models by the engine time of their requests, so unused time is paid by those who use
the deployment; where nobody does, it is unused. Revenue is what requests were charged, at list prices. Costs are in
dollars: a tenant that is charged in another currency has no margin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Protocol
from uuid import UUID

from django.db import connection

from billing.errors import UsageDeleted
from billing.models import UsageExport
from billing.pricing import amounts
from tenants.ids import first_id_at
from tenants.models import Tenant

MS_PER_HOUR = 3_600_000
MILLION = 10**6
CURRENCY = "USD"
#: No request runs longer; one that began so long before midnight may still run after it.
LONGEST_REQUEST = timedelta(hours=6)
COSTS_HEADER = (
    "deployment", "pools", "slot_hours", "busy_share", "requests", "tokens", "cost_usd", "per_million_tokens_usd",
    "unused_usd", "not_spent_engine_seconds", "not_spent_slot_hours", "not_spent_usd",
)  # fmt: skip
#: The currency of what slots cost, as a pool's slot_hour_usd says.
_COSTS = "USD"
MARGIN_HEADER = ("tenant", "model", "engine_seconds", "revenue", "currency", "cost_usd", "margin_usd")
_USED = """
    SELECT replica_id, tenant_id, model_name, purpose = 'tenant', count(*),
        sum(prompt_tokens::bigint + cached_prompt_tokens + completion_tokens),
        round(sum(greatest(duration_ms - queue_ms, 0)))::bigint, coalesce(sum(amount_pico), 0),
        coalesce(sum(round(avoided_engine_ms)) FILTER (WHERE state = 'complete'), 0)::bigint
    FROM billing_usagerecord WHERE id >= %s AND id < %s AND refusals = 0 GROUP BY 1, 2, 3, 4
"""
_BUSY = """
    SELECT replica_id, sum(extract(epoch FROM upper(span) - lower(span))) FROM (
        SELECT replica_id, unnest(range_agg(tstzrange(
            greatest(finished_at - greatest(duration_ms - queue_ms, 0) * interval '1 ms', %(start)s),
            least(finished_at, %(end)s)))) AS span
        FROM billing_usagerecord
        WHERE id >= %(first)s AND id < %(behind)s AND replica_id IS NOT NULL AND finished_at > %(start)s
            AND finished_at - greatest(duration_ms - queue_ms, 0) * interval '1 ms' < %(end)s
        GROUP BY replica_id
    ) AS spans WHERE NOT isempty(span) GROUP BY replica_id
"""


class Slots(Protocol):
    """What a replica had of slots; ``workers.serving.slot_hours`` reads it."""

    @property
    def replica_id(self) -> UUID: ...
    @property
    def deployment(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_ms(self) -> int: ...
    @property
    def slot_hour_pico(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCost:
    """A deployment's month. Money is None where nobody has said what a slot of one of its pools costs.

    ``busy_slot_ms``: of ``slot_ms``, while a request ran. ``not_spent_…``: what the prediction cache saved; the slots'
    time is the engine time times the slots' busy time for each engine time spent.
    """

    deployment: str
    pools: tuple[str, ...]
    slot_ms: int
    busy_slot_ms: int
    requests: int
    tokens: int
    engine_ms: int
    cost_pico: int | None
    #: Of the cost, if no tenant used the deployment.
    unused_pico: int | None
    not_spent_engine_ms: int

    @property
    def busy_share(self) -> float | None:
        """The share of the slots' time in which a request ran."""
        return self.busy_slot_ms / self.slot_ms if self.slot_ms else None

    @property
    def per_million_pico(self) -> int | None:
        """The cost of a million tokens; None without tokens or cost."""
        if self.cost_pico is None or not self.tokens:
            return None
        return round(Fraction(self.cost_pico * MILLION, self.tokens))

    @property
    def not_spent_slot_ms(self) -> int:
        """The slots' time that the prediction cache saved."""
        return round(Fraction(self.not_spent_engine_ms * self.busy_slot_ms, self.engine_ms)) if self.engine_ms else 0

    @property
    def not_spent_pico(self) -> int | None:
        """What that time would have cost."""
        if self.cost_pico is None or not self.slot_ms:
            return None
        return round(Fraction(self.cost_pico * self.not_spent_slot_ms, self.slot_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """A tenant's use of a model. ``cost_pico`` is None where the cost of a deployment that it used is unknown."""

    tenant: str
    model_name: str
    engine_ms: int
    revenue_pico: int
    currency: str
    cost_pico: int | None

    @property
    def margin_pico(self) -> int | None:
        """Revenue minus cost; None where they cannot be subtracted."""
        return None if self.cost_pico is None or self.currency != CURRENCY else self.revenue_pico - self.cost_pico


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A month: deployments by name, margins by tenant and model."""

    year: int
    month: int
    deployments: tuple[DeploymentCost, ...]
    margins: tuple[Margin, ...]


@dataclass(frozen=True, slots=True)
class _Used:
    """Requests of a tenant and model that one replica ran; ``replica_id`` None: that no engine ran."""

    replica_id: UUID | None
    tenant_id: UUID
    model_name: str
    is_tenants: bool
    requests: int
    tokens: int
    engine_ms: int
    amount_pico: int
    avoided_ms: int


_Pair = tuple[UUID, str]


def span(year: int, month: int) -> tuple[datetime, datetime]:
    """Return the month's first instant in UTC and that of the next month."""
    return datetime(year, month, 1, tzinfo=UTC), datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def read(year: int, month: int, slots: Sequence[Slots]) -> Costs:
    """Return the costs of a month, from what its replicas had of slots. Raises UsageDeleted."""
    start, end = span(year, month)
    if UsageExport.objects.filter(begins_at__lt=end, ends_at__gt=start, retired_at__isnull=False).exists():
        raise UsageDeleted(f"{year}-{month:02}")
    every, busy = _used(start, end), _busy(start, end)
    earned, used = _earned(every), [row for row in every if row.replica_id is not None]
    by_deployment: defaultdict[str, list[Slots]] = defaultdict(list)
    for each in slots:
        by_deployment[each.deployment].append(each)
    of_replica: defaultdict[UUID | None, list[_Used]] = defaultdict(list)
    for row in used:
        of_replica[row.replica_id].append(row)
    rows = {name: [row for own in each for row in of_replica[own.replica_id]] for name, each in by_deployment.items()}
    avoided = _avoided(rows, {model: ms for (_, model), (_, ms) in _by_model(earned).items()})
    deployments = tuple(
        _deployment(name, by_deployment[name], rows[name], busy, avoided.get(name, 0)) for name in sorted(by_deployment)
    )
    return Costs(year=year, month=month, deployments=deployments, margins=_margins(deployments, rows, used, earned))


def costs_csv(found: Costs) -> Iterator[tuple[str, ...]]:
    """Yield the header and a row per deployment; what is unknown is empty."""
    yield COSTS_HEADER
    for each in found.deployments:
        yield (
            each.deployment,
            " ".join(each.pools),
            _hours(each.slot_ms),
            "" if each.busy_share is None else f"{each.busy_share:.4f}",
            str(each.requests),
            str(each.tokens),
            _units(each.cost_pico),
            _units(each.per_million_pico),
            _units(each.unused_pico),
            f"{each.not_spent_engine_ms / 1000:.3f}",
            _hours(each.not_spent_slot_ms),
            _units(each.not_spent_pico),
        )


def margin_csv(found: Costs) -> Iterator[tuple[str, ...]]:
    """Yield the header and a row per tenant and model; what is unknown is empty."""
    yield MARGIN_HEADER
    for each in found.margins:
        yield (
            each.tenant,
            each.model_name,
            f"{each.engine_ms / 1000:.3f}",
            amounts.units(each.revenue_pico, each.currency),
            each.currency,
            _units(each.cost_pico),
            _units(each.margin_pico),
        )


def divided(total: int, shares: Sequence[int]) -> list[int]:
    """Divide a whole number in proportion to the shares, of which one is positive; the parts add up to it exactly."""
    whole = sum(shares)
    parts = [total * share // whole for share in shares]
    rest = total - sum(parts)
    by_remainder = sorted(range(len(shares)), key=lambda place: (-(total * shares[place] % whole), place))
    for place in by_remainder[:rest]:
        parts[place] += 1
    return parts


def _used(start: datetime, end: datetime) -> list[_Used]:
    with connection.cursor() as cursor:
        cursor.execute(_USED, [first_id_at(start), first_id_at(end)])
        return [
            _Used(replica_id, tenant_id, model_name, is_tenants, requests, *map(int, sums))
            for replica_id, tenant_id, model_name, is_tenants, requests, *sums in cursor.fetchall()
        ]


def _busy(start: datetime, end: datetime) -> dict[UUID, int]:
    """Return for how many milliseconds each replica had a request, read day by day."""
    found: defaultdict[UUID, int] = defaultdict(int)
    while start < end:
        following = min(start + timedelta(days=1), end)
        given: dict[str, datetime | UUID] = {
            "start": start,
            "end": following,
            "first": first_id_at(start - LONGEST_REQUEST),
            "behind": first_id_at(following),
        }
        with connection.cursor() as cursor:
            cursor.execute(_BUSY, given)
            for replica_id, seconds in cursor.fetchall():
                found[replica_id] += round(seconds * 1000)
        start = following
    return found


def _earned(used: Iterable[_Used]) -> dict[_Pair, tuple[int, int]]:
    """Return the revenue, and the engine time that prediction saved, by tenant and model."""
    found: dict[_Pair, tuple[int, int]] = {}
    for row in used:
        if row.is_tenants:
            pico, ms = found.get((row.tenant_id, row.model_name), (0, 0))
            found[row.tenant_id, row.model_name] = pico + row.amount_pico, ms + row.avoided_ms
    return found


def _by_model(earned: Mapping[_Pair, tuple[int, int]]) -> dict[tuple[str, str], tuple[int, int]]:
    sums: defaultdict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (_, model), (pico, ms) in earned.items():
        before = sums["", model]
        sums["", model] = (before[0] + pico, before[1] + ms)
    return sums


def _avoided(rows: Mapping[str, Sequence[_Used]], saved: Mapping[str, int]) -> dict[str, int]:
    """Divide the engine time that prediction saved of each model among the deployments that served it."""
    engine: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, used in rows.items():
        for row in used:
            engine[row.model_name][name] += row.engine_ms
    found: defaultdict[str, int] = defaultdict(int)
    for model, by_name in engine.items():
        if sum(by_name.values()):
            for name, part in zip(by_name, divided(saved.get(model, 0), list(by_name.values())), strict=True):
                found[name] += part
    return found


def _deployment(
    name: str, slots: Sequence[Slots], rows: Sequence[_Used], busy: Mapping[UUID, int], not_spent_ms: int
) -> DeploymentCost:
    cost = _cost(slots)
    is_used = any(row.is_tenants and row.engine_ms for row in rows)
    return DeploymentCost(
        deployment=name,
        pools=tuple(sorted({each.pool for each in slots})),
        slot_ms=sum(each.slot_ms for each in slots),
        busy_slot_ms=sum(min(busy.get(each.replica_id, 0) * each.slots, each.slot_ms) for each in slots),
        requests=sum(row.requests for row in rows),
        tokens=sum(row.tokens for row in rows),
        engine_ms=sum(row.engine_ms for row in rows),
        cost_pico=cost,
        unused_pico=0 if is_used else cost,
        not_spent_engine_ms=not_spent_ms,
    )


def _cost(slots: Iterable[Slots]) -> int | None:
    """Return what the slots cost, rounded once; None if the cost of one is unknown."""
    total = Fraction(0)
    for each in slots:
        if each.slot_hour_pico is None:
            return None
        total += Fraction(each.slot_ms * each.slot_hour_pico, MS_PER_HOUR)
    return round(total)


def _margins(
    deployments: Sequence[DeploymentCost],
    rows: Mapping[str, Sequence[_Used]],
    used: Sequence[_Used],
    earned: Mapping[_Pair, tuple[int, int]],
) -> tuple[Margin, ...]:
    costs: dict[_Pair, int | None] = dict.fromkeys(earned, 0)
    for each in deployments:
        shares: defaultdict[_Pair, int] = defaultdict(int)
        for row in rows[each.deployment]:
            if row.is_tenants and row.engine_ms:
                shares[row.tenant_id, row.model_name] += row.engine_ms
        parts = divided(each.cost_pico, list(shares.values())) if shares and each.cost_pico is not None else None
        for place, pair in enumerate(shares):
            before = costs.get(pair, 0)
            costs[pair] = None if before is None or parts is None else before + parts[place]
    engine: defaultdict[_Pair, int] = defaultdict(int)
    for row in used:
        if row.is_tenants:
            engine[row.tenant_id, row.model_name] += row.engine_ms
    tenants = {row.id: row for row in Tenant.objects.filter(id__in={tenant_id for tenant_id, _ in costs})}
    found = [
        Margin(
            tenant=tenants[tenant_id].slug,
            model_name=model,
            engine_ms=engine[tenant_id, model],
            revenue_pico=earned.get((tenant_id, model), (0, 0))[0],
            currency=tenants[tenant_id].currency,
            cost_pico=cost,
        )
        for (tenant_id, model), cost in costs.items()
        if tenant_id in tenants
    ]
    return tuple(sorted(found, key=lambda each: (each.tenant, each.model_name)))


def _hours(ms: int) -> str:
    return f"{ms / MS_PER_HOUR:.3f}"


def _units(pico: int | None) -> str:
    return "" if pico is None else amounts.units(pico, _COSTS)

"""What operators set of a pool, beside its placeholders (:mod:`workers.fleet.operations`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from django.db import transaction

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName
from workers.errors import BadCount, Conflict
from workers.models import Pool
from workers.scheduler import reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Where a pool is, when it is filled, and between which shares of its capacity the next one is prepared."""

    region: str
    priority: int
    high_water: float
    low_water: float


def require_regions(names: Sequence[str]) -> None:
    """Raise BadName for the first name that is no pool's region: a slip would leave a tenant without replicas."""
    known = sorted(set(Pool.objects.values_list("region", flat=True)))
    for name in names:
        if name not in known:
            raise BadName("region", name, " | ".join(known) or "the region of a pool; there is no pool yet")


@transaction.atomic
def ensure(actor: Actor, name: str, kind: str, wanted: PoolSettings) -> Pool:
    """Create the pool, or change its settings; idempotent. Raises Conflict if it is of another kind, and BadCount."""
    if not 0 < wanted.low_water < wanted.high_water <= 1:
        raise BadCount(wanted.low_water, f"above 0 and below the high water mark of {wanted.high_water:g}", "low water")
    reconciler.lock(wait=True)
    after = asdict(wanted)
    row, is_new = Pool.objects.select_for_update(no_key=True).get_or_create(name=name, defaults={"kind": kind, **after})
    if is_new:
        audit.record(actor, "pool.created", ("pool", row.id), after={"name": name, "kind": kind, **after})
        return row
    if row.kind != kind:
        raise Conflict("pool", name, "kind", row.kind, kind)
    before = {field: getattr(row, field) for field in after}
    if before != after:
        for field, value in after.items():
            setattr(row, field, value)
        row.save(update_fields=list(after))
        audit.record(actor, "pool.changed", ("pool", row.id), before=before, after=after)
    return row

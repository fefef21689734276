"""A fleet with warm capacity: two pools, placeholders of both levels, a broken slot, loads, starts and decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db.models.functions import Now

from tenants.audit import SYSTEM
from tests.portal import fixtures
from tests.portal.fixtures import World
from workers.fleet import deployments
from workers.models import (
    Deployment,
    DeploymentPool,
    GatewayLoad,
    Level,
    Node,
    Placeholder,
    Pool,
    Replica,
    ScaleDecision,
    Slot,
    SlotLease,
    StartTime,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """What a test names. ``promotable`` is a warm zygote, ``held`` a placeholder that has only its slot."""

    deployment: Deployment
    pool: Pool
    node: Node
    ready: Replica
    promotable: Placeholder
    held: Placeholder
    broken: Slot


def build(world: World) -> Warmth:
    """Add to ``fixtures.fleet``: a node with two placeholders, a free and a quarantined slot, and what was measured."""
    deployment = fixtures.fleet(world)
    Deployment.objects.filter(id=deployment.id).update(max_replicas=6)
    first = Pool.objects.get()
    Pool.objects.update(placeholders_per_node=1, priority=1)
    pool = deployments.ensure_pool(SYSTEM, name="spare", kind="simulated", priority=2)
    Pool.objects.filter(id=pool.id).update(placeholders_per_node=2)
    DeploymentPool.objects.create(deployment=deployment, pool=pool, sequence=2)
    node = deployments.ensure_node(SYSTEM, pool=pool, name="n2")
    Node.objects.filter(id=node.id).update(lease_expires_at=Now() + timedelta(hours=12))
    slots = [Slot.objects.create(node=node, device_uuid=f"cpu-{index}", index=index) for index in range(4)]
    broken = slots[3]
    broken.health, broken.fault = Slot.Health.QUARANTINED, "it did not become free in 30 s"
    broken.save()
    reading = {"used_bytes": 71 * 2**30, "utilisation_percent": 93, "temperature_celsius": 78, "power_watts": 612.4}
    xids = {"xid_errors": 2, "last_xid": 31, "uncorrected_ecc_errors": 1}
    Slot.objects.filter(id=slots[2].id).update(memory_bytes=80 * 2**30, reading=reading | xids, read_at=_later())
    ready = Replica.objects.filter(state=Replica.State.READY).order_by("id")[0]
    times = {"ttft_seconds": 0.31, "tpot_seconds": 0.021, "prefix_hit_share": 0.64}
    Replica.objects.filter(id=ready.id).update(start_level=Level.H2, startup_seconds=4.1, **times)
    Replica.objects.exclude(id=ready.id).update(start_level=Level.COLD, start_note="no placeholder was warm")
    promotable = _placeholder(deployment, slots[0], Level.H2)
    held = _placeholder(deployment, slots[1], Level.H0)
    _measure(deployment, ready, first)
    GatewayLoad.objects.create(
        process="g1", deployment=deployment, in_flight_requests=3, in_flight_tokens=9_000, reported_at=_later()
    )
    GatewayLoad.objects.create(
        process="g2",
        deployment=deployment,
        in_flight_requests=1,
        in_flight_tokens=3_000,
        queued_requests=2,
        queued_tokens=700,
        reported_at=_later(),
    )
    _decide(deployment, pool)
    return Warmth(
        deployment=deployment, pool=pool, node=node, ready=ready, promotable=promotable, held=held, broken=broken
    )


def _later() -> Now:
    """Return a time that stays fresh however long a test takes."""
    return Now() + timedelta(hours=12)  # type: ignore[return-value]  # a combined expression


def _placeholder(deployment: Deployment, slot: Slot, level: Level) -> Placeholder:
    zygote = level == Level.H2
    row = Placeholder.objects.create(
        node=slot.node,
        deployment=deployment,
        engine="simulated",
        target_level=level,
        level=level,
        state=Placeholder.State.WARM,
        reason="the pool keeps it warm",
        memory_bytes=612_000_000 if zygote else None,
        warm_seconds=7.4 if zygote else None,
    )
    SlotLease.objects.create(slot=slot, kind=SlotLease.Kind.PLACEHOLDER, placeholder=row, fence=1)
    return row


def _measure(deployment: Deployment, replica: Replica, pool: Pool) -> None:
    for level, each in ((Level.COLD, (30.0, 31.0, 38.0)), (Level.H2, (4.4, 4.0, 3.9, 4.1, 6.2))):
        for seconds in each:
            StartTime.objects.create(
                replica=replica,
                revision=deployment.revision,
                pool=pool,
                level=level,
                seconds=seconds,
                process_seconds=seconds - 0.3,
                load_seconds=1.5 if level == Level.H2 else None,
            )


def _decide(deployment: Deployment, pool: Pool) -> None:
    ScaleDecision.objects.create(
        deployment=deployment,
        action=ScaleDecision.Action.UP,
        from_replicas=2,
        to_replicas=3,
        reason="40,000 tokens in flight want 3 replicas of 16,384 for 5 s",
        inputs={"in_flight_tokens": 40_000, "queued_tokens": 0, "target_tokens_per_replica": 16_384, "ready": 2},
    )
    ScaleDecision.objects.create(
        deployment=deployment,
        pool=pool,
        action=ScaleDecision.Action.PREPARE,
        from_replicas=0,
        to_replicas=1,
        reason="local is 78 % full, above its mark of 70 %",
        inputs={"share": 0.78, "high_water": 0.7},
    )

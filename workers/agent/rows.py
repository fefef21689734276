"""What an agent reads and writes in the database: its node's rows, only while it owns the node.

Every write names the epoch this agent took the node with and the fence of the replica, so a suspended or
partitioned agent that wakes up changes nothing: it gets ``Superseded`` or False.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from django.db import connection, transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.db.models.functions import Now

from tenants.ids import ReplicaId, RevisionId
from workers import endpoints, leases, processes, reconcile
from workers.agent.probes import Load
from workers.devices.provider import Device
from workers.errors import NotFound, Superseded
from workers.models import Node, Replica, ReplicaEvent, Slot

State = Literal[
    "requested",
    "reserved",
    "starting",
    "warming",
    "ready",
    "suspect",
    "draining",
    "backoff",
    "stopped",
    "lost",
    "failed",
]
FAILURE_WINDOW = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One replica of this node as the database has it, with what it needs to start.

    ``wanted`` is False once it shall stop. ``state_seconds`` is how long it has been in its state and ``due`` is True
    when its next start may begin, both by the database's clock. ``started_before`` is True once this generation has
    been ready. ``drain_over`` is True once requests that have not ended are cut.
    """

    replica_id: ReplicaId
    state: State
    wanted: bool
    fence: int
    generation: int
    attempts: int
    state_seconds: float
    due: bool
    drain_over: bool
    started_before: bool
    host: str
    port: int | None
    engine: str
    source: str
    served_name: str
    revision_id: RevisionId
    engine_args: tuple[str, ...]
    context_length_tokens: int


class NodeRows:
    """One node's rows, owned from :func:`take` until another agent takes the node."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.epoch = node.epoch
        self._node_id = node.id

    @classmethod
    def take(cls, name: str) -> NodeRows:
        """Take the node over from whichever agent had it. Raises NotFound when nobody registered the node.

        The lease is left as it is until the first :meth:`beat`, so that engines can be adopted before reconcile
        offers the node to others.
        """
        with transaction.atomic():
            node = Node.objects.select_for_update(no_key=True).filter(name=name).first()
            if node is None:
                raise NotFound("node", name)
            node.epoch += 1
            node.boot_id = processes.boot_id()
            node.agent_pid = os.getpid()
            node.save(update_fields=["epoch", "boot_id", "agent_pid"])
        return cls(node)

    def register(self, devices: Iterable[Device]) -> None:
        """Make the node's slots what its devices are; what is no longer there is gone. Raises Superseded."""
        with transaction.atomic():
            self._require_ownership()
            found = {device.uuid: device for device in devices}
            known = Slot.objects.filter(node_id=self._node_id)
            known.exclude(device_uuid__in=found).update(health=Slot.Health.GONE)
            known.filter(device_uuid__in=found, health=Slot.Health.GONE).update(health=Slot.Health.OK)
            for device in found.values():
                facts = {"index": device.index, "memory_bytes": device.memory_bytes}
                slot, _ = Slot.objects.update_or_create(node_id=self._node_id, device_uuid=device.uuid, defaults=facts)
                if device.fault and slot.health == Slot.Health.OK:
                    Slot.objects.filter(id=slot.id).update(health=Slot.Health.QUARANTINED, fault=device.fault)

    def beat(self) -> None:
        """Renew the node's lease. Raises Superseded."""
        renewed = Node.objects.filter(id=self._node_id, epoch=self.epoch).update(
            lease_expires_at=Now() + reconcile.LEASE
        )
        if not renewed:
            raise Superseded(self.name, self.epoch)

    def wanted(self) -> list[Wanted]:
        """Return every replica of the node that runs, shall run, or was lost, oldest first."""
        due = Q(next_attempt_at=None) | Q(next_attempt_at__lte=Now())
        over = Q(drain_deadline=None) | Q(drain_deadline__lte=Now())
        rows = (
            Replica.objects.filter(node_id=self._node_id)
            .exclude(state__in=(Replica.State.STOPPED, Replica.State.FAILED))
            .annotate(
                age=Now() - F("state_since"),
                due=ExpressionWrapper(due, output_field=BooleanField()),
                drain_over=ExpressionWrapper(over, output_field=BooleanField()),
            )
            .select_related("deployment", "revision__model")
            .order_by("id")
        )
        return [_wanted(row, age=row.age, due=row.due, drain_over=row.drain_over) for row in rows]

    def move(self, row: Wanted, to: State, reason: str, **changes: Any) -> bool:
        """Take the replica from the state in ``row`` to another, with its event and, if routing changes, the notice.

        One transaction. False when the replica has changed since ``row`` was read. Raises Superseded.
        """
        with transaction.atomic():
            self._require_ownership()
            changed = self._same(row).update(state=to, state_since=Now(), **changes)
            if changed:
                ReplicaEvent.objects.create(
                    replica_id=row.replica_id, from_state=row.state, to_state=to, reason=reason[:500]
                )
                if to in {Replica.State.STOPPED, Replica.State.FAILED}:
                    leases.release(replica_id=row.replica_id)
                if Replica.State.READY in (row.state, to):
                    endpoints.announce()
        return bool(changed)

    def note(self, row: Wanted, **changes: Any) -> bool:
        """Write facts about the replica that change no state. False when it has changed. Raises Superseded."""
        with transaction.atomic():
            self._require_ownership()
            return bool(self._same(row).update(**changes))

    def observe(self, row: Wanted, load: Load) -> bool:
        """Write what the engine is doing. False when the replica has changed. Raises Superseded."""
        return self.note(
            row,
            running_requests=load.running,
            waiting_requests=load.waiting,
            kv_usage=load.kv_usage,
            observed_at=Now(),
        )

    def failed_starts(self, row: Wanted) -> int:
        """Return how often the replica lately failed before it was ready. A crash after that is not counted:
        whoever kills engines five times in ten minutes must not end the deployment.
        """
        return ReplicaEvent.objects.filter(
            replica_id=row.replica_id,
            to_state=Replica.State.BACKOFF,
            from_state__in=(
                Replica.State.REQUESTED,
                Replica.State.RESERVED,
                Replica.State.BACKOFF,
                Replica.State.STARTING,
                Replica.State.WARMING,
            ),
            created_at__gt=Now() - FAILURE_WINDOW,
        ).count()

    def _same(self, row: Wanted) -> Any:
        return Replica.objects.filter(
            id=row.replica_id, node_id=self._node_id, fence=row.fence, generation=row.generation, state=row.state
        )

    def _require_ownership(self) -> None:
        """Lock the node row against the next agent's :meth:`take` until the transaction ends."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM workers_node WHERE id = %s AND epoch = %s FOR SHARE", [self._node_id, self.epoch]
            )
            if cursor.fetchone() is None:
                raise Superseded(self.name, self.epoch)


def _wanted(row: Replica, *, age: dt.timedelta, due: bool, drain_over: bool) -> Wanted:
    revision = row.revision
    return Wanted(
        replica_id=cast(ReplicaId, row.id),
        state=cast(State, row.state),
        wanted=row.desired_state == Replica.Desired.RUNNING,
        fence=row.fence,
        generation=row.generation,
        attempts=row.attempts,
        state_seconds=age.total_seconds(),
        due=due,
        drain_over=drain_over,
        started_before=row.startup_seconds is not None,
        host=row.host,
        port=row.port,
        engine=revision.engine,
        source=revision.source,
        served_name=revision.model.name,
        revision_id=cast(RevisionId, revision.id),
        engine_args=tuple(revision.engine_args),
        context_length_tokens=revision.context_length_tokens,
    )

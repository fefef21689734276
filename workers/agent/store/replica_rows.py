"""What an agent reads and writes in the database: its node's rows, only while it owns the node.

Every write names the epoch with which this agent took the node and the fence of the replica, so a suspended or
partitioned agent that resumes changes nothing: it gets ``Superseded`` or False.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import BooleanField, Case, ExpressionWrapper, F, JSONField, Q, Value, When
from django.db.models.functions import Now

from catalogue import engine_options
from catalogue.engine_options import EngineOptions
from catalogue.models import ModelRevision
from tenants.ids import ReplicaId, RevisionId
from workers import metrics, processes
from workers.agent.probes.http_probe import EngineLoad
from workers.agent.probes.recent_times import Times
from workers.agent.readings.node_readings import DeviceReading
from workers.agent.store import boot_rows
from workers.devices.provider import Device
from workers.engines.start_parts import StartParts
from workers.errors import NotFound, Superseded
from workers.models import (
    EngineBoot,
    Level,
    Node,
    Placeholder,
    Replica,
    ReplicaEvent,
    Slot,
    SlotLease,
    StartTime,
    Weights,
)
from workers.processes import ProcessIdentity
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints, engine_keys

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
#: Its engine has ended, or is about to be killed.
_WITHOUT_PROCESS = frozenset({"backoff", "stopped", "failed"})
FAILURE_WINDOW = dt.timedelta(minutes=10)
#: Longest pause between two statements of a transaction that holds the node.
LONGEST_PAUSE_MS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedSlot:
    """A slot that is leased. ``fault`` says why it is unusable; empty if it is usable."""

    slot_id: UUID
    device_uuid: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The model and the options that an engine is started with."""

    engine: str
    source: str
    served_name: str
    engine_args: tuple[str, ...]
    context_length_tokens: int
    options: EngineOptions
    #: Of the engine; empty: the first one that this node has.
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica of this node as the database has it, with what it needs to start.

    ``wanted`` is False once it must stop. ``state_seconds`` is how long it has been in its state and ``due`` is True
    when its next start may begin, both by the database's clock. ``started_before`` is True once this generation has
    been ready. ``drain_over`` is True once unfinished requests are cut. ``placeholder_id`` is the placeholder it is
    promoted from, ``placeholder_fence`` that one's fence. ``process`` is its engine as last written, in boot
    ``boot_id``. ``engine_key`` is the fingerprint of the engine key that its token is derived from.
    """

    replica_id: ReplicaId
    deployment: str
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
    #: The engine of this generation speaks TLS.
    speaks_tls: bool
    process: ProcessIdentity | None
    boot_id: str
    engine_key: str
    placeholder_id: UUID | None
    placeholder_fence: int | None
    start_note: str
    slots: tuple[LeasedSlot, ...]
    revision_id: RevisionId
    program: Program

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its slots, by index."""
        return tuple(slot.device_uuid for slot in self.slots)


class NodeRows:
    """One node's rows, owned from :func:`take` until another agent takes the node."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.epoch = node.epoch
        #: Where the node's engines listen and are reached.
        self.address = node.address
        self.node_id = node.id
        self._pool_id = node.pool_id

    @classmethod
    def take(cls, name: str) -> NodeRows:
        """Take the node over from the agent that had it. Raises NotFound if the node is not registered.

        The lease is not renewed before the first :meth:`beat`, so that engines can be adopted before reconcile
        places new replicas on the node.
        """
        with transaction.atomic():
            node = Node.objects.select_for_update(no_key=True).filter(name=name).first()
            if node is None or node.removed_at is not None:
                raise NotFound("node", name)
            node.epoch += 1
            node.fetching_epoch = node.epoch
            node.boot_id = processes.boot_id()
            node.agent_pid = os.getpid()
            node.address = settings.NODE_ADDRESS
            node.engine_key = engine_keys.newest()
            node.metrics = {role: settings.METRICS_ADDRESSES[role] for role in ("agent", "drain")}
            node.save(
                update_fields=["epoch", "boot_id", "agent_pid", "address", "engine_key", "fetching_epoch", "metrics"]
            )
        return cls(node)

    def register(self, devices: Iterable[Device]) -> None:
        """Make the node's slots match its devices; slots of missing devices become "gone". Raises Superseded."""
        with self.owning():
            found = {device.uuid: device for device in devices}
            known = Slot.objects.filter(node_id=self.node_id)
            list(
                known.select_for_update().order_by("id").values_list("id")
            )  # as claims take them, see workers.scheduler.slots.slot_leases
            known.exclude(device_uuid__in=found).update(health=Slot.Health.GONE)
            back = known.filter(device_uuid__in=found, health=Slot.Health.GONE)
            back.filter(fault="").update(health=Slot.Health.OK)
            back.update(health=Slot.Health.QUARANTINED)  # as before: only an operator restores it
            for device in found.values():
                facts = {"index": device.index, "memory_bytes": device.memory_bytes}
                slot, _ = Slot.objects.update_or_create(node_id=self.node_id, device_uuid=device.uuid, defaults=facts)
                if device.fault and slot.health == Slot.Health.OK:
                    Slot.objects.filter(id=slot.id).update(
                        health=Slot.Health.QUARANTINED, fault=device.fault, quarantined_at=Now()
                    )

    def report_engines(self, versions: Sequence[str]) -> None:
        """Write the versions of engines that the node has. Raises Superseded."""
        written = Node.objects.filter(id=self.node_id, epoch=self.epoch).update(
            engines=list(versions), engines_epoch=self.epoch
        )
        if not written:
            raise Superseded(self.name, self.epoch)

    def report_gpu_check(self, report: Mapping[str, Any]) -> None:
        """Write what `hearth gpu-check` last found on the node; empty for nothing. Raises Superseded."""
        if not Node.objects.filter(id=self.node_id, epoch=self.epoch).update(gpu_check=report):
            raise Superseded(self.name, self.epoch)

    def store_readings(self, readings: Collection[DeviceReading]) -> None:
        """Write what the node's devices do now, in place of what they did. Raises Superseded."""
        if not readings:
            return
        by_device = []
        for each in readings:
            shown = dataclasses.replace(each.reading, pids=())  # as many as there are processes, and shown nowhere
            by_device.append(When(device_uuid=each.device.uuid, then=Value(msgspec.to_builtins(shown), JSONField())))
        with self.owning():
            Slot.objects.filter(node_id=self.node_id, device_uuid__in=[each.device.uuid for each in readings]).update(
                reading=Case(*by_device, output_field=JSONField()), read_at=Now()
            )

    def check(self) -> None:
        """Raise Superseded if another agent has taken the node."""
        if not Node.objects.filter(id=self.node_id, epoch=self.epoch).exists():
            raise Superseded(self.name, self.epoch)

    def beat(self) -> None:
        """Renew the node's lease. Raises Superseded."""
        renewed = Node.objects.filter(id=self.node_id, epoch=self.epoch).update(
            lease_expires_at=Now() + reconciler.LEASE
        )
        if not renewed:
            raise Superseded(self.name, self.epoch)

    def replicas(self) -> list[ReplicaRow]:
        """Return every replica of the node that runs, should run, or was lost, oldest first."""
        due = Q(next_attempt_at=None) | Q(next_attempt_at__lte=Now())
        over = Q(drain_deadline=None) | Q(drain_deadline__lte=Now())
        rows = (
            Replica.objects.filter(node_id=self.node_id)
            .exclude(state__in=(Replica.State.STOPPED, Replica.State.FAILED))
            .annotate(
                age=Now() - F("state_since"),
                due=ExpressionWrapper(due, output_field=BooleanField()),
                drain_over=ExpressionWrapper(over, output_field=BooleanField()),
            )
            .select_related("deployment", "revision__model", "placeholder")
            .order_by("id")
        )
        found = list(rows)  # before the leases, which are created with the rows and end later
        slots = leased_slots(self.node_id)
        return [
            _replica_row(row, age=row.age, due=row.due, drain_over=row.drain_over, slots=slots.get(row.id, ()))
            for row in found
        ]

    def move(self, row: ReplicaRow, to: State, reason: str, *, log_tail: str = "", **changes: Any) -> bool:
        """Move the replica from the state in ``row`` to another, with its event and, if routing changes, the notice.

        ``log_tail`` is the end of a failed engine's log. One transaction. False if the replica has changed since
        ``row`` was read. Raises Superseded.
        """
        with self.owning():
            changed = self._same(row).update(state=to, state_since=Now(), **changes)
            if changed:
                if to in _WITHOUT_PROCESS:
                    boot_rows.end(row.replica_id, EngineBoot.End.KILLED)
                ReplicaEvent.objects.create(
                    replica_id=row.replica_id,
                    from_state=row.state,
                    to_state=to,
                    reason=reason[:500],
                    log_tail=log_tail,
                )
                if to in {Replica.State.STOPPED, Replica.State.FAILED}:
                    slot_leases.release(replica_id=row.replica_id)
                if Replica.State.READY in (row.state, to):
                    endpoints.announce()
        if not changed:
            metrics.STALE_FENCE_REJECTS.inc()
        return bool(changed)

    def ready(self, row: ReplicaRow, reason: str, *, process_seconds: float, parts: StartParts) -> bool:
        """Move the replica to ready for the first time in this generation, and store how long its start took.

        One transaction. False if the replica has changed. Raises Superseded.
        """
        with self.owning():
            seconds = round(process_seconds, 3)
            if not self.move(row, "ready", reason, startup_seconds=seconds, last_error=""):
                return False
            replica = Replica.objects.annotate(waited=Now() - F("reserved_at")).get(id=row.replica_id)
            if replica.waited is not None:  # None in rows of a version that did not store the time
                StartTime.objects.create(
                    replica=replica,
                    revision_id=row.revision_id,
                    pool_id=self._pool_id,
                    level=replica.start_level or Level.COLD,
                    seconds=round(replica.waited.total_seconds(), 3),
                    process_seconds=seconds,
                    fetch_seconds=self._fetch_seconds(row.revision_id),
                    **dataclasses.asdict(parts),
                )
        return True

    def _fetch_seconds(self, revision_id: RevisionId) -> float | None:
        """Return how long the first start of a revision on the node waited for its files; None for a later one."""
        if StartTime.objects.filter(revision_id=revision_id, replica__node_id=self.node_id).exists():
            return None
        ready = Weights.objects.filter(node_id=self.node_id, revision_id=revision_id, state=Weights.State.READY)
        waited = ready.annotate(waited=F("state_since") - F("created_at")).values_list("waited", flat=True).first()
        return None if waited is None else round(waited.total_seconds(), 3)

    def give_up(self, row: ReplicaRow, reason: str) -> bool:
        """Stop the replica for good and free its slots, so that reconcile creates another where slots are free.

        The state is not "failed", which would keep its deployment off the node's other slots. Call it once no process
        of the replica lives. False if the replica has changed. Raises Superseded.
        """
        return self.move(row, "stopped", reason, desired_state=Replica.Desired.STOPPED, last_error=reason, pid=None)

    def quarantine(self, slot_id: UUID, fault: str) -> bool:
        """Take a slot out of use until an operator restores it; False if it already is. Raises Superseded."""
        with self.owning():
            return bool(
                Slot.objects.filter(id=slot_id, node_id=self.node_id, health=Slot.Health.OK).update(
                    health=Slot.Health.QUARANTINED, fault=fault[:500], quarantined_at=Now()
                )
            )

    def note(self, row: ReplicaRow, **changes: Any) -> bool:
        """Write facts without changing the state. False if the replica has changed. Raises Superseded."""
        with self.owning():
            return bool(self._same(row).update(**changes))

    def announce(self, row: ReplicaRow, generation: int, reason: str, **changes: Any) -> bool:
        """Move the replica to starting, as a new generation. False if the replica has changed. Raises Superseded."""
        with self.owning():
            moved = self.move(row, "starting", reason, generation=generation, **changes)
            if moved:
                boot_rows.begin(row.replica_id, generation)
        return moved

    def observe(self, row: ReplicaRow, load: EngineLoad, times: Times) -> bool:
        """Write the engine's load, its counters, and how fast it answered in the last minute.

        False if the replica has changed. Raises Superseded.
        """
        with self.owning():
            boot_rows.count(row.replica_id, row.generation, load)
            return self._observe(row, load, times)

    def stopping(self, row: ReplicaRow, load: EngineLoad | None) -> None:
        """Write the counters of an engine that is stopped now; the last ones if no request is left on it.

        Raises Superseded.
        """
        with self.owning():
            if load is not None:
                boot_rows.count(row.replica_id, row.generation, load)
                if load.running + load.waiting == 0:
                    boot_rows.end(row.replica_id, EngineBoot.End.ORDERLY)

    def _observe(self, row: ReplicaRow, load: EngineLoad, times: Times) -> bool:
        return self.note(
            row,
            running_requests=load.running,
            waiting_requests=load.waiting,
            kv_usage=load.kv_usage,
            **dataclasses.asdict(times),
            cache_tokens=load.cache_tokens,
            host_cache_tokens=load.host_cache_tokens,
            max_requests=load.max_requests,
            context_tokens=load.context_tokens,
            observed_at=Now(),
        )

    def failed_starts(self, row: ReplicaRow) -> int:
        """Return how often the replica recently failed before it was ready.

        A crash after that is not counted: killing engines five times in ten minutes must not end the deployment.
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

    def _same(self, row: ReplicaRow) -> Any:
        return Replica.objects.filter(
            id=row.replica_id, node_id=self.node_id, fence=row.fence, generation=row.generation, state=row.state
        )

    @contextlib.contextmanager
    def owning(self) -> Iterator[None]:
        """Run one transaction with the node row locked against the next agent's :meth:`take`. Raises Superseded.

        The database ends the transaction of an agent that is suspended in it, so the next agent does not wait for ever.
        """
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
                " FROM workers_node WHERE id = %s AND epoch = %s FOR SHARE",
                [str(LONGEST_PAUSE_MS), self.node_id, self.epoch],
            )
            if cursor.fetchone() is None:
                metrics.STALE_FENCE_REJECTS.inc()
                raise Superseded(self.name, self.epoch)
            yield


def leased_slots(node_id: UUID) -> dict[UUID, tuple[LeasedSlot, ...]]:
    """Return the node's leased slots by the id of their replica or placeholder, each by index."""
    found: dict[UUID, tuple[LeasedSlot, ...]] = {}
    leased = SlotLease.objects.filter(slot__node_id=node_id, released_at=None).select_related("slot")
    for lease in leased.order_by("slot__index"):
        slot, holder = lease.slot, lease.replica_id or lease.placeholder_id
        assert holder is not None, "the database's own constraint"
        fault = "" if slot.health == Slot.Health.OK else slot.fault or slot.health
        found[holder] = (
            *found.get(holder, ()),
            LeasedSlot(slot_id=slot.id, device_uuid=slot.device_uuid, fault=fault),
        )
    return found


def program_of(revision: ModelRevision, served_name: str = "") -> Program:
    """Return the program of the revision's engines. ``served_name``: empty for the model's name."""
    return Program(
        engine=revision.engine,
        source=revision.source,
        served_name=served_name or revision.model.name,
        engine_args=tuple(revision.engine_args),
        context_length_tokens=revision.context_length_tokens,
        options=engine_options.from_json(revision.options),
        version=revision.engine_version,
    )


def identity(row: Replica | Placeholder) -> ProcessIdentity | None:
    """Return the process that the row names."""
    if row.pid is None or row.pid_start_ticks is None:
        return None
    return ProcessIdentity(pid=row.pid, start_ticks=row.pid_start_ticks)


def _replica_row(
    row: Replica, *, age: dt.timedelta, due: bool, drain_over: bool, slots: tuple[LeasedSlot, ...]
) -> ReplicaRow:
    return ReplicaRow(
        replica_id=cast(ReplicaId, row.id),
        deployment=row.deployment.name,
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
        speaks_tls=row.tls_generation == row.generation,
        process=identity(row),
        boot_id=row.boot_id,
        engine_key=row.engine_key,
        placeholder_id=row.placeholder_id,
        placeholder_fence=row.placeholder.fence if row.placeholder else None,
        start_note=row.start_note,
        slots=slots,
        revision_id=cast(RevisionId, row.revision_id),
        program=program_of(row.revision, row.served_name),
    )

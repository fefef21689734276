"""What an agent reads and writes about its node's placeholders, under the same epoch and fences as replicas."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Now

from workers.agent.store.replica_rows import LeasedSlot, NodeRows, Program, identity, leased_slots, program_of
from workers.models import Level, Placeholder, Replica
from workers.processes import ProcessIdentity
from workers.scheduler.slots import slot_leases

PlaceholderState = Literal["requested", "warming", "warm", "promoted", "evicting", "evicted", "lost"]

_State = Placeholder.State
_LIVING = (_State.REQUESTED, _State.WARMING, _State.WARM, _State.EVICTING, _State.LOST)
#: States of a replica in which its placeholder's process may still be a zygote.
_PROMOTING = (Replica.State.RESERVED, Replica.State.STARTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderRow:
    """One placeholder of this node as the database has it, with the program that its zygote is started for.

    ``program`` is None if there is no model to prepare for. ``process`` is its zygote as last written, in boot
    ``boot_id``. ``state_seconds`` is how long it has been in its state, by the database's clock.
    """

    placeholder_id: UUID
    state: PlaceholderState
    state_seconds: float
    fence: int
    wants_zygote: bool
    has_zygote: bool
    slots: tuple[LeasedSlot, ...]
    program: Program | None
    process: ProcessIdentity | None
    boot_id: str
    reason: str

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its slots, by index."""
        return tuple(slot.device_uuid for slot in self.slots)


class PlaceholderRows:
    """The placeholders of a node that an agent owns."""

    def __init__(self, node: NodeRows) -> None:
        self._node = node

    def all(self) -> list[PlaceholderRow]:
        """Return every placeholder that has or may have a process here, oldest first; also those being promoted."""
        promoting = Q(state=_State.PROMOTED, replica__state__in=_PROMOTING)
        rows = (
            Placeholder.objects.filter(Q(state__in=_LIVING) | promoting, node_id=self._node.node_id)
            .annotate(age=Now() - F("state_since"))
            .select_related("deployment__revision__model")
            .order_by("id")
        )
        found = list(rows)  # before the leases, which are created with the rows and end later
        slots = leased_slots(self._node.node_id)
        return [_placeholder_row(row, row.age, slots.get(row.id, ())) for row in found]

    def move(self, row: PlaceholderRow, to: PlaceholderState, reason: str, **changes: Any) -> bool:
        """Move the placeholder from the state in ``row`` to another; its lease ends when it is evicted.

        One transaction. False if it has changed since ``row`` was read. Raises Superseded.
        """
        with self._node.owning():
            changed = self._same(row).update(state=to, state_since=Now(), reason=reason[:500], **changes)
            if changed and to == "evicted":
                slot_leases.release(placeholder_id=row.placeholder_id)
        return bool(changed)

    def note(self, row: PlaceholderRow, **changes: Any) -> bool:
        """Write facts without changing the state. False if the placeholder has changed. Raises Superseded."""
        with self._node.owning():
            return bool(self._same(row).update(**changes))

    def _same(self, row: PlaceholderRow) -> Any:
        return Placeholder.objects.filter(
            id=row.placeholder_id, node_id=self._node.node_id, fence=row.fence, state=row.state
        )


def _placeholder_row(row: Placeholder, age: dt.timedelta, slots: tuple[LeasedSlot, ...]) -> PlaceholderRow:
    return PlaceholderRow(
        placeholder_id=row.id,
        state=cast(PlaceholderState, row.state),
        state_seconds=age.total_seconds(),
        fence=row.fence,
        wants_zygote=row.target_level == Level.H2,
        has_zygote=row.level == Level.H2,
        slots=slots,
        program=program_of(row.deployment.revision) if row.deployment else None,
        process=identity(row),
        boot_id=row.boot_id,
        reason=row.reason,
    )

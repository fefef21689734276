"""Decide the next steps of a rollout, from facts alone: no database, no clock.

New replicas come first, as many as the surge allows. Where no node has room for one, old ones give up their slots, as
many at once as may be missing. Apart from that, an old replica stops only once others serve in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workers.scheduler.slots.placement import (
    GONE,
    STOP_ORDER,
    DeploymentView,
    FreeSlots,
    NodeView,
    ReplicaView,
    RolloutView,
    Steps,
    StopReason,
    fill,
    settle,
    settled,
    surplus,
)

#: How many nodes a text about missing room names.
MOST_NAMED = 4


def advance(deployment: DeploymentView, rollout: RolloutView, free_slots: FreeSlots, steps: Steps) -> None:
    """Add the next steps of the deployment's rollout.

    Until one new replica has passed its canary there is only one, and an old one that is missing is replaced by one of
    its kind; from then on every replica that is missing is a new one.
    """
    if not deployment.desired:
        _empty(deployment, rollout, steps)
    elif rollout.state == "paused":
        _hold(deployment, rollout, free_slots, steps)
    else:
        _Advance(deployment, rollout, free_slots, steps).run()


def obstacle(
    wanted: DeploymentView, old: Sequence[ReplicaView], old_slots: int, free_slots: FreeSlots, may_be_missing: int
) -> str:
    """Return why there is no room for one replica of what is ``wanted``, with figures; empty if there is.

    There is if a node has slots for it, or has them once as many ``old`` replicas stop there as ``may_be_missing``.
    """
    if any(free_slots.choose(wanted, pool_id) for pool_id in wanted.pool_ids):
        return ""
    if _room(wanted, old, old_slots, free_slots, may_be_missing) is not None:
        return ""
    return _figures(wanted, old, old_slots, free_slots, may_be_missing)


def _hold(deployment: DeploymentView, rollout: RolloutView, free_slots: FreeSlots, steps: Steps) -> None:
    """Keep the replicas of a paused rollout as they are: what is missing is replaced, and nothing is given up."""
    # One that does not serve yet does not replace one that is drained.
    every = tuple(
        replace(each, state="warming") if each.state == "ready" and not each.serves else each
        for each in _every(deployment, rollout)
    )
    there = sum(each.state not in GONE and not each.leaving for each in every)
    kind = rollout.target if rollout.proven else deployment
    held = Steps()
    settle(replace(kind, replicas=every, desired=max(deployment.desired, there)), free_slots, held)
    steps.stop |= held.stop
    (steps.roll if rollout.proven else steps.place).extend(held.place)


def _empty(deployment: DeploymentView, rollout: RolloutView, steps: Steps) -> None:
    """Stop everything, because no replica is desired. The rollout goes on once one is; an undone one is finished."""
    steps.stop |= {each.id: "surplus" for each in _every(deployment, rollout)}
    if rollout.state == "undoing":
        steps.finished.add(rollout.id)
    else:
        steps.waits_for[rollout.id] = "the deployment is scaled to zero, so no replica can show that it works"


def _every(deployment: DeploymentView, rollout: RolloutView) -> tuple[ReplicaView, ...]:
    return (*deployment.replicas, *rollout.target.replicas, *rollout.strays)


@dataclass(frozen=True, slots=True)
class _Room:
    """The old replicas that have to stop on a node before a new one fits there; ``serving`` of them serve."""

    node: NodeView
    gives_way: tuple[ReplicaView, ...]
    serving: int


class _Advance:
    """One tick of a rollout. To undo one is the same with the roles exchanged: its own replicas are the old ones."""

    def __init__(self, deployment: DeploymentView, rollout: RolloutView, free_slots: FreeSlots, steps: Steps) -> None:
        self._deployment, self._rollout, self._free_slots, self._steps = deployment, rollout, free_slots, steps
        self._undoing = rollout.state == "undoing"
        self._why: StopReason = "undone" if self._undoing else "superseded"
        self._new, self._old = (deployment, rollout.target) if self._undoing else (rollout.target, deployment)
        self._proven = rollout.proven or self._undoing
        #: Those that stay, and those that go.
        self._staying = [each for each in _working(self._new) if not each.leaving]
        leaving = [each for each in _working(self._new) if each.leaving]
        strays = [each for each in rollout.strays if each.state not in GONE]
        self._going = _give_up_order([*_working(self._old), *leaving, *strays])
        #: Replicas that have to serve: at most as many as ever did since the rollout began.
        self._needed = min(deployment.desired, rollout.most_serving)
        self._serving = sum(each.serves for each in (*self._staying, *self._going))

    def run(self) -> None:
        """Add the steps."""
        lacking = self._lacking()
        made, waiting = self._make(lacking)
        under_way = any(not each.serves for each in self._staying)
        blocked = lacking > 0 and not made and not waiting and not under_way
        if not self._proven:
            self._replace_missing(made, spared=self._rollout.max_unavailable if blocked else 0)
        self._give_up_gone(made)
        self._give_up_surplus()
        stopped = self._give_up()
        if waiting:
            self._wait("a placeholder that is nearly warm, or the model's files")
        elif blocked and self._rollout.draining:
            self._wait(f"{self._rollout.draining} of the old replicas finish their requests, then their slots are free")
        elif blocked and not stopped:
            self._make_room()
        if not self._going and not made and not waiting and self._is_complete(lacking):
            self._steps.finished.add(self._rollout.id)

    def _is_complete(self, lacking: int) -> bool:
        """Return whether the new replicas that there can be all serve; for others there is no room, nor will be."""
        if self._undoing:
            return True
        serve = bool(self._staying) and all(each.serves for each in self._staying)
        return serve and not (lacking and self._rollout.draining)

    def _lacking(self) -> int:
        """Return how many more new replicas are wanted now, whether or not there is room."""
        if self._proven:
            return max(0, self._deployment.desired - len(self._staying))
        return 0 if self._staying else 1

    def _make(self, lacking: int) -> tuple[int, int]:
        """Place new replicas within the surge; return how many were placed, and how many wait for something better."""
        present = len(self._staying) + len(self._going)
        allowed = min(lacking, self._deployment.desired + self._rollout.max_surge - present)
        served = sum(each.serves for each in self._going)
        nodes, waiting = fill(self._new, self._staying, allowed, self._free_slots, patient=min(max(0, allowed), served))
        places = self._steps.place if self._undoing else self._steps.roll
        places += [(self._deployment.id, node.id) for node in nodes]
        return len(nodes), waiting

    def _replace_missing(self, made: int, *, spared: int) -> None:
        """Replace old replicas that are missing by others of their kind, apart from those ``spared`` for a new one.

        Until the new one is proven it does not count as one of those that are desired.
        """
        olds = [each for each in self._going if not each.leaving]
        most = self._deployment.desired + self._rollout.max_surge - len(self._staying) - made
        missing = min(self._deployment.desired, most) - len(self._going) - spared
        nodes, _ = fill(self._old, olds, missing, self._free_slots, patient=0)
        self._steps.place += [(self._deployment.id, node.id) for node in nodes]

    def _give_up_gone(self, made: int) -> None:
        """Give up replicas that have failed or were lost: a lost one once another has its place."""
        self._steps.stop |= settled(self._new) | settled(self._old)
        lost = [each for each in _every(self._deployment, self._rollout) if each.state == "lost"]
        failed = (each for each in self._rollout.strays if each.state == "failed")
        self._steps.stop |= {each.id: "superseded" for each in failed}
        missing = self._deployment.desired - len(self._staying) - len(self._going)
        over = lost if missing <= 0 else lost[:made]
        self._steps.stop |= {each.id: "replaced" for each in over}

    def _give_up_surplus(self) -> None:
        """Give up new replicas beyond the desired number, those that do not serve first."""
        extra = len(self._staying) - self._deployment.desired
        over = surplus(self._new, [each for each in self._staying if not each.serves], extra)
        over += surplus(self._new, [each for each in self._staying if each.serves], extra - len(over))
        self._steps.stop |= {each.id: "surplus" for each in over}
        self._staying = [each for each in self._staying if each not in over]
        self._serving -= sum(each.serves for each in over)

    def _give_up(self) -> int:
        """Stop old replicas as long as enough others serve, and return how many.

        One that does not serve itself stops once there are enough without it, and at once if its rollout is undone.
        """
        present, kept = len(self._staying) + len(self._going), []
        for each in self._going:
            spare = self._proven and present > self._deployment.desired
            if self._serving > self._needed if each.serves else spare or self._undoing:
                self._steps.stop[each.id] = self._why
                self._serving -= each.serves
                present -= 1
            else:
                kept.append(each)
        stopped = len(self._going) - len(kept)
        self._going = kept
        return stopped

    def _make_room(self) -> None:
        """Stop the old replicas in whose place a new one fits, as many as may be missing; say so if none does."""
        spare = self._serving - (self._needed - self._rollout.max_unavailable)
        slots = self._old.slots_per_replica
        room = _room(self._new, self._going, slots, self._free_slots, spare)
        if room is None:
            self._wait(_figures(self._new, self._going, slots, self._free_slots, max(0, spare)))
            return
        self._steps.stop |= {each.id: self._why for each in room.gives_way}
        self._wait(f"{len(room.gives_way)} old replicas on {room.node.name} make room: no node has slots for another")

    def _wait(self, what: str) -> None:
        self._steps.waits_for[self._rollout.id] = what


def _working(view: DeploymentView) -> list[ReplicaView]:
    return [each for each in view.replicas if each.state not in GONE]


def _give_up_order(replicas: Iterable[ReplicaView]) -> list[ReplicaView]:
    """Return replicas in the order in which they stop: those that do not serve, then those that are drained."""
    return sorted(
        replicas,
        key=lambda each: (each.serves, not each.leaving, STOP_ORDER.index(each.state), each.requests, -each.id.int),
    )


def _room(
    wanted: DeploymentView, old: Iterable[ReplicaView], old_slots: int, free_slots: FreeSlots, spare: int
) -> _Room | None:
    """Return where the fewest serving replicas have to stop for a new one; None where more than ``spare`` would."""
    rooms = []
    for place, pool_id in enumerate(wanted.pool_ids):
        for node in free_slots.offered(wanted, pool_id):
            held = [each for each in _give_up_order(old) if each.node_id == node.id]
            lacking = wanted.slots_per_replica - free_slots.slots[node.id]
            count = max(1, -(-lacking // old_slots))
            gives_way = tuple(held[:count])
            serving = sum(each.serves for each in gives_way)
            if len(gives_way) == count and (not serving or serving <= spare):
                rooms.append((place, serving, count, node.name, _Room(node, gives_way, serving)))
    return min(rooms, key=lambda each: each[:4])[4] if rooms else None


def _figures(
    wanted: DeploymentView, old: Iterable[ReplicaView], old_slots: int, free_slots: FreeSlots, spare: int
) -> str:
    """Return what the nodes have, beside what one new replica needs."""
    old = list(old)
    nodes = [node for pool_id in wanted.pool_ids for node in free_slots.offered(wanted, pool_id)]
    in_pools = [node for node in free_slots.nodes if node.pool_id in wanted.pool_ids]
    if not nodes and in_pools and not any(map(wanted.may_run_on, in_pools)):
        return f"no node of its pools has {wanted.engine_version}: run `hearth engine install` on one of them"
    if not nodes and wanted.weights is not None:
        return "no node has the model's files yet"
    if not nodes:
        return "no node of its pools takes replicas"
    told = []
    for node in nodes[:MOST_NAMED]:
        held = sum(each.node_id == node.id for each in old)
        told.append(f"{node.name} has {free_slots.slots[node.id]} free and {held * old_slots} of old replicas")
    others = f", and {len(nodes) - MOST_NAMED} other nodes are full, too" if len(nodes) > MOST_NAMED else ""
    return (
        f"a replica takes {_counted(wanted.slots_per_replica, 'slot')} of one node: {', '.join(told)}{others}; "
        f"{_counted(spare, 'replica')} may be missing now"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

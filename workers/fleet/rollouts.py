"""Rollouts: begin one, pause it, go on, undo it. ``workers.scheduler.rollout`` carries them out.

Each is one transaction under the lock of reconcile, so that none comes between two steps of a tick.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import transaction

from catalogue import adapters, engine_options, registry
from catalogue.models import Model, ModelRevision
from tenants import audit
from tenants.audit import Actor
from workers import tasks
from workers.errors import BadValue, NotFound, Refused
from workers.fleet import lookup
from workers.models import Deployment, Replica, Rollout
from workers.scheduler import reconciler
from workers.scheduler.rollout import deployment_pools, rollouts
from workers.serving import endpoints, rollout_policy
from workers.serving.rollout_policy import RolloutPolicy

_State = Rollout.State
#: Adapters that an error names.
MOST_NAMED = 5
_SERVING = (Replica.State.READY, Replica.State.SUSPECT)


def open_of(deployment: Deployment) -> Rollout | None:
    """Return the deployment's open rollout."""
    rows = Rollout.objects.filter(deployment=deployment, finished_at=None)
    return rows.select_related("revision__model", "earlier_revision__model").first()


def as_wanted(deployment: Deployment) -> Deployment:
    """Return the deployment with what it will serve once its rollout is done; what changes it starts from there.

    It is a copy that must not be saved.
    """
    return all_as_wanted([deployment])[0]


def all_as_wanted(deployments: Iterable[Deployment]) -> list[Deployment]:
    """Return each deployment as :func:`as_wanted` does."""
    rows = list(deployments)
    opened = Rollout.objects.filter(deployment__in=rows, finished_at=None).exclude(state=_State.UNDOING)
    by_deployment = {row.deployment_id: row for row in opened.select_related("revision__model")}
    return [_as_of(row, by_deployment.get(row.id)) for row in rows]


def _as_of(deployment: Deployment, rollout: Rollout | None) -> Deployment:
    if rollout is None:
        return deployment
    found = copy.copy(deployment)
    found.revision, found.slots_per_replica = rollout.revision, rollout.slots_per_replica
    return found


def begin(
    actor: Actor,
    deployment: Deployment,
    revision: ModelRevision,
    slots_per_replica: int,
    *,
    earlier_pools: Sequence[UUID] | None = None,
    anew: bool = False,
) -> Rollout | None:
    """Begin to replace a deployment's replicas; None if they are replaced at once, because none of them serves.

    ``earlier_pools``: what an undo gives back; None: the present ones. A rollout that is open ends: this one takes its
    place. What the deployment serves as it is undoes an open one, unless all replicas are replaced ``anew``. The caller
    has the lock of reconcile. Raises Refused if there is no room for a new replica, not even in the place of as many
    old ones as may be missing.
    """
    earlier = open_of(deployment)
    if (
        (revision.id, slots_per_replica) == (deployment.revision_id, deployment.slots_per_replica)
        and earlier
        and not anew
    ):
        if earlier.state != _State.UNDOING:
            rollouts.undo(actor, earlier, f"{actor.name} deployed the earlier revision again", pools=False)
        return earlier
    wanted_replicas = deployment.replicas.filter(desired_state=Replica.Desired.RUNNING)
    serving = wanted_replicas.filter(state__in=_SERVING, canary__in=Replica.PROVEN)
    if not deployment.desired_replicas or not serving.exists():
        _replace_at_once(actor, deployment, revision, slots_per_replica, earlier)
        return None
    row = Rollout(
        deployment=deployment,
        revision=revision,
        slots_per_replica=slots_per_replica,
        earlier_revision=deployment.revision,
        earlier_slots_per_replica=deployment.slots_per_replica,
        earlier_pools=list(deployment_pools.of(deployment) if earlier_pools is None else earlier_pools),
        most_serving=serving.count(),
        started_by=actor.name[:200],
    )
    if earlier is not None and earlier.earlier_pools is not None:
        row.earlier_pools = earlier.earlier_pools  # what serves now was there before both
    policy = rollout_policy.read(deployment.rollout)
    if obstacle := reconciler.obstacle(row, policy.max_unavailable):
        instead = "free slots, or let more replicas be missing (max_unavailable of the deployment's rollout policy)"
        raise Refused("deployment", deployment.name, obstacle, instead)
    if earlier is not None:
        rollouts.end(actor, earlier, _State.REPLACED, f"{actor.name} began another one")
    row.save()
    after = {
        "revision": str(revision.id),
        "slots_per_replica": slots_per_replica,
        "earlier_revision": str(deployment.revision_id),
    }
    audit.record(actor, "rollout.started", ("deployment", deployment.id), after=after)
    tasks.hint(())
    return row


@transaction.atomic
def pause(actor: Actor, deployment: str) -> tuple[Rollout, bool]:
    """Keep the replicas of both kinds as they are; return the rollout, and whether this changed it.

    A bound that is passed still undoes it. Raises NotFound, Refused.
    """
    return _set_state(actor, deployment, _State.RUNNING, _State.PAUSED)


@transaction.atomic
def resume(actor: Actor, deployment: str) -> tuple[Rollout, bool]:
    """Let a paused rollout go on; return it, and whether this changed it. Raises NotFound, Refused."""
    return _set_state(actor, deployment, _State.PAUSED, _State.RUNNING)


@transaction.atomic
def undo(actor: Actor, deployment: str) -> tuple[Rollout, bool]:
    """Return to the revision and the pools before: of an open rollout, or of the last one that is done, by another one.

    Returns the rollout, and whether this changed anything. Raises NotFound; Refused also while the model has adapters
    that the engines of that revision could not load.
    """
    reconciler.lock(wait=True)
    found = lookup.deployment(deployment)
    row = open_of(found)
    if row is not None:
        changed = row.state != _State.UNDOING
        if changed:
            require_room_for_adapters(row.earlier_revision)
            rollouts.undo(actor, row, f"undone by {actor.name}")
            tasks.hint(())
        return row, changed
    last = Rollout.objects.filter(deployment=found, state=_State.DONE).order_by("-id").first()
    if last is None or (last.revision_id, last.slots_per_replica) != (found.revision_id, found.slots_per_replica):
        why = "no rollout led to what it serves"
        raise Refused("deployment", found.name, why, "deploy what it served before")
    if (last.earlier_revision_id, last.earlier_slots_per_replica) == (found.revision_id, found.slots_per_replica):
        raise Refused("deployment", found.name, "its last rollout changed nothing", "deploy what it served before")
    require_room_for_adapters(last.earlier_revision)
    pools = deployment_pools.of(found)
    if last.earlier_pools is not None:
        deployment_pools.change(found, last.earlier_pools)
    made = begin(actor, found, last.earlier_revision, last.earlier_slots_per_replica, earlier_pools=pools)
    return made or last, True


@transaction.atomic
def restart(actor: Actor, deployment: str) -> Rollout:
    """Replace every replica by another one of the same revision. Raises NotFound, Refused."""
    reconciler.lock(wait=True)
    found = lookup.deployment(deployment)
    row = open_of(found)
    if row is not None:
        raise Refused("deployment", found.name, f"its rollout is {row.state}", "wait for its end, or undo it")
    made = begin(actor, found, found.revision, found.slots_per_replica)
    if made is None:
        raise Refused("deployment", found.name, "no replica of it serves", "scale it")
    return made


def rename(actor: Actor, model: Model, old_name: str) -> str:
    """Let the running engines of a renamed model serve under its old name, and begin to replace them by others.

    Return which deployments' engines cannot be replaced now and why, empty if all are. The caller has the lock of
    reconcile.
    """
    rows = list(
        Deployment.objects.filter(revision__model=model, archived_at=None).select_related("revision").order_by("name")
    )
    running = Replica.objects.filter(deployment__in=rows, served_name="").exclude(state=Replica.State.STOPPED)
    if running.update(served_name=old_name):
        endpoints.announce()
    refused = []
    for row in rows:
        wanted = as_wanted(row)
        try:
            with transaction.atomic():
                begin(actor, row, wanted.revision, wanted.slots_per_replica, anew=True)
        except Refused as error:
            refused.append(f"deployment {row.name}: {error.why}")
    return "; ".join(refused)


@transaction.atomic
def set_policy(actor: Actor, deployment: str, policy: RolloutPolicy) -> bool:
    """Set how the deployment's replicas are replaced; return whether this changed it. Raises NotFound, BadValue."""
    if not policy.max_surge and not policy.max_unavailable:
        raise BadValue("rollout policy", "max_surge 0 and max_unavailable 0", "at least 1 for one of them")
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    before, after = row.rollout, rollout_policy.to_json(policy)
    if rollout_policy.read(before) == policy:
        return False
    Deployment.objects.filter(id=row.id).update(rollout=after)
    audit.record(actor, "deployment.rollout_set", ("deployment", row.id), before=before, after=after)
    return True


def keep_pools(deployment: Deployment) -> None:
    """Let no undo of an earlier rollout change the deployment's pools: somebody has changed them since."""
    Rollout.objects.filter(deployment=deployment).exclude(earlier_pools=None).update(earlier_pools=None)


def require_room_for_adapters(revision: ModelRevision) -> None:
    """Raise Refused if engines of this revision could not load an adapter of the model."""
    options = engine_options.from_json(revision.options)
    most = options.lora_rank if options.lora_adapters else 0
    lost = [
        (each.model.name, rank)
        for each in adapters.of(revision.model)
        if each.adapter is not None and (rank := adapters.from_json(each.adapter).rank) > most
    ]
    if not lost:
        return
    room = f"adapters up to rank {most}" if most else "no adapter"
    named = ", ".join(f"{name!r} of rank {rank}" for name, rank in lost[:MOST_NAMED])
    others = f" and {len(lost) - MOST_NAMED} others" if len(lost) > MOST_NAMED else ""
    commands = "`, `".join(f"hearth model archive {name}" for name, _ in lost[:MOST_NAMED])
    raise Refused(
        "model",
        revision.model.name,
        f"those engines would load {room}, and it has {named}{others}",
        f"archive what is to go first: `{commands}`",
    )


def end_open(actor: Actor, deployment: Deployment, why: str) -> None:
    """End an open rollout whose replicas all stop. The caller has the lock of reconcile."""
    row = open_of(deployment)
    if row is not None:
        rollouts.end(actor, row, _State.REPLACED, why)


def _replace_at_once(
    actor: Actor, deployment: Deployment, revision: ModelRevision, slots_per_replica: int, earlier: Rollout | None
) -> None:
    """Withdraw all replicas and serve the revision from now on; reconcile starts the new ones."""
    if earlier is not None:
        rollouts.end(actor, earlier, _State.REPLACED, f"{actor.name} began another one, and no replica served")
    rollouts.serve(deployment, revision, slots_per_replica)
    if reconciler.withdraw(deployment.replicas.all()):
        endpoints.announce()
    registry.activate(actor, revision)
    tasks.hint(())


def _set_state(actor: Actor, deployment: str, before: Rollout.State, after: Rollout.State) -> tuple[Rollout, bool]:
    reconciler.lock(wait=True)
    found = lookup.deployment(deployment)
    row = open_of(found)
    if row is None:
        raise NotFound("open rollout of deployment", found.name)
    if row.state == after:
        return row, False
    if row.state != before:
        raise Refused("deployment", found.name, f"its rollout is {row.state}", "wait for its end")
    row.state, row.reason = after, f"by {actor.name}"[:500]
    row.save(update_fields=["state", "reason"])
    told = {"state": before.value}, {"state": after.value}
    audit.record(actor, f"rollout.{after}", ("deployment", found.id), before=told[0], after=told[1])
    tasks.hint(())
    return row, True

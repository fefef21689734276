"""The verbs of ``workers.fleet.verbs``: what operators do to the fleet from commands, the API and pages.

Each verb sets a state, so running it twice changes nothing more and is audited once, and every worker that receives a
broadcast may run it. Each is one transaction that first waits for a running tick of the reconciler, so the two never
interleave; then the reconciler and the agents concerned are woken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from django.db import transaction

from catalogue import routing_policy
from catalogue.models import ModelRevision
from catalogue.routing_policy import RoutingPolicy
from tenants import audit
from tenants.audit import Actor
from workers import tasks
from workers.engines.arguments import is_offline
from workers.errors import BadCount, BadValue, Refused
from workers.fleet import deployments, lookup, pools, rollouts
from workers.fleet.status import inventory
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Replica, ReplicaEvent, Rollout, Slot
from workers.models.deployments import DEFAULT_TARGET_TOKENS
from workers.scheduler import placeholder_pools, reconciler, weights
from workers.scheduler.scaling import scaling_signals
from workers.scheduler.scaling.scaling_signals import Objectives
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints, pool_requirements, promotion
from workers.serving import rollout_policy as policies
from workers.serving.pool_requirements import PoolRequirements

#: Most placeholders that a pool can keep on each node.
MAX_PLACEHOLDERS = 64
#: The largest number of the column, and a day.
MAX_TARGET_TOKENS = 2**31 - 1
MAX_DELAY_SECONDS = 86_400
LEVELS = (Level.H0.value, Level.H2.value)
LEAVES = "stops once its replacement is ready, or at once if no node has room for one"

_Held = Placeholder.State


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The result of a verb. ``changed`` is False if nothing had to change; ``now`` is the state, in one line."""

    target: str
    changed: bool
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingTarget:
    """The target load of one replica, and how long the load must ask for a change before scaling acts.

    ``target_tokens_per_replica``: None lets it be learned.
    """

    target_tokens_per_replica: int | None
    scale_up_delay_seconds: float
    scale_down_delay_seconds: float


@transaction.atomic
def scale(actor: Actor, deployment: str, minimum: int, maximum: int | None = None) -> Effect:
    """Set how many replicas a deployment has; see ``deployments.scale``. Raises NotFound, BadCount, Refused."""
    reconciler.lock(wait=True)
    known = lookup.deployment(deployment)
    row = deployments.scale(actor, deployment, minimum, maximum)
    tasks.hint(())
    wanted = f"wants {row.max_replicas} replicas"
    if row.min_replicas < row.max_replicas:
        wanted = f"wants {row.min_replicas} to {row.max_replicas} replicas, {row.desired_replicas} at the present load"
    shortage = inventory.obstacles(row.name)
    return Effect(
        target=f"deployment {row.name}",
        changed=(known.min_replicas, known.max_replicas) != (row.min_replicas, row.max_replicas),
        now=wanted + (f"; {shortage}" if shortage else ""),
    )


@transaction.atomic
def set_target(actor: Actor, deployment: str, target: ScalingTarget) -> Effect:
    """Set the target load. Raises NotFound; BadCount for tokens or delays out of range."""
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    tokens = target.target_tokens_per_replica
    if tokens is not None and not 1 <= tokens <= MAX_TARGET_TOKENS:
        raise BadCount(tokens, f"1 to {MAX_TARGET_TOKENS}", "tokens per replica")
    for delay in (target.scale_up_delay_seconds, target.scale_down_delay_seconds):
        if not 0 <= delay <= MAX_DELAY_SECONDS:  # refuses NaN too
            raise BadCount(delay, f"0 to {MAX_DELAY_SECONDS}", "seconds of delay")
    before = asdict(target_of(row))
    after = asdict(target)
    if before != after:
        learned = {"target_tokens_per_replica": tokens or DEFAULT_TARGET_TOKENS, "learns_target": tokens is None}
        Deployment.objects.filter(id=row.id).update(**after | learned)
        audit.record(actor, "deployment.target_set", ("deployment", row.id), before=before, after=after)
    return Effect(
        target=f"deployment {row.name}",
        changed=before != after,
        now=f"targets {tokens or 'a learned number of'} tokens per replica, "
        f"up after {target.scale_up_delay_seconds:g} s, down after {target.scale_down_delay_seconds:g} s",
    )


def target_of(row: Deployment) -> ScalingTarget:
    """Return what is set of a deployment's target."""
    return ScalingTarget(
        target_tokens_per_replica=None if row.learns_target else row.target_tokens_per_replica,
        scale_up_delay_seconds=row.scale_up_delay_seconds,
        scale_down_delay_seconds=row.scale_down_delay_seconds,
    )


@transaction.atomic
def set_objectives(actor: Actor, deployment: str, objectives: str | Objectives = "") -> Effect:
    """Set the signals of engines that scaling follows. Raises NotFound, BadValue."""
    wanted = scaling_signals.parse(objectives) if isinstance(objectives, str) else objectives
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    before = scaling_signals.read(row.objectives)
    if before != wanted:
        Deployment.objects.filter(id=row.id).update(objectives=scaling_signals.to_json(wanted))
        told = {"objectives": str(before)}, {"objectives": str(wanted)}
        audit.record(actor, "deployment.objectives_set", ("deployment", row.id), before=told[0], after=told[1])
    now = f"follows {wanted} beside tokens in flight" if str(wanted) else "follows tokens in flight alone"
    return Effect(target=f"deployment {row.name}", changed=before != wanted, now=now)


@transaction.atomic
def require(actor: Actor, deployment: str, requirements: str | PoolRequirements = "") -> Effect:
    """Set what the deployment requires of its pools. Raises NotFound, BadValue; Refused if none of them has it."""
    wanted = pool_requirements.parse(requirements) if isinstance(requirements, str) else requirements
    wanted = pool_requirements.normalised(wanted)
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    links = DeploymentPool.objects.filter(deployment=row).select_related("pool").order_by("sequence")
    unmet = [why for link in links if (why := pool_requirements.unmet(wanted, link.pool))]
    if unmet and len(unmet) == len(links):
        instead = "set the pools with `celery -A hearth fleet pool set`, or give the deployment other pools"
        raise Refused(
            "deployment", row.name, f"none of its pools has what it would require: {'; '.join(unmet)}", instead
        )
    before = pool_requirements.read(row.requires)
    if before != wanted:
        Deployment.objects.filter(id=row.id).update(requires=pool_requirements.to_json(wanted))
        told = {"requires": str(before)}, {"requires": str(wanted)}
        audit.record(actor, "deployment.required", ("deployment", row.id), before=told[0], after=told[1])
        tasks.hint(())
    now = f"requires {wanted}" if str(wanted) else "requires nothing of its pools"
    return Effect(
        target=f"deployment {row.name}",
        changed=before != wanted,
        now=now + (f"; left out: {'; '.join(unmet)}" if unmet else ""),
    )


@transaction.atomic
def pool_set(actor: Actor, pool: str, settings: str | dict[str, Any]) -> Effect:
    """Change settings of a pool, or make it; see ``pools.change``. Raises NotFound, BadValue, BadCount, Conflict."""
    row, changed = pools.change(actor, pool, pools.parse(settings) if isinstance(settings, str) else settings)
    if changed:
        tasks.hint(())
    return Effect(target=f"pool {row.name}", changed=changed, now=f"has {pools.setting_text(pools.settings_of(row))}")


@transaction.atomic
def route(actor: Actor, deployment: str, policy: RoutingPolicy) -> Effect:
    """Set the routing policy; gateways follow at once. Raises NotFound."""
    reconciler.lock(wait=True)
    row = lookup.deployment(deployment)
    before = routing_policy.read(row.routing)
    after = msgspec.structs.replace(before, policy=policy)
    if before != after:
        Deployment.objects.filter(id=row.id).update(routing=routing_policy.to_json(after))
        told = {"policy": str(before.policy)}, {"policy": str(policy)}
        audit.record(actor, "deployment.routed", ("deployment", row.id), before=told[0], after=told[1])
        endpoints.announce()
    return Effect(target=f"deployment {row.name}", changed=before != after, now=f"routes by {policy}")


@transaction.atomic
def drain(actor: Actor, target: str) -> Effect:
    """Replace a replica, or everything on a node: ``target`` is a node's name or the end of a replica's id.

    A drained replica serves until as many others are ready as its deployment desires. Then it leaves routing, finishes
    its requests and stops. If no node has room for the replacement, it stops at once. Raises NotFound, Ambiguous.
    """
    reconciler.lock(wait=True)
    if Node.objects.filter(name=target, removed_at=None).exists():
        return drain_node(actor, target)
    row = lookup.replica(target)
    name = f"replica {row.deployment.name}/{lookup.short(row.id)}"
    if row.desired_state == Replica.Desired.STOPPED or row.state in reconciler.ENDED:
        return Effect(target=name, changed=False, now=f"is {row.state} and not wanted")
    changed = _leave(actor, [row])
    if changed:
        audit.record(actor, "replica.drained", ("replica", row.id), before={"leaving": False}, after={"leaving": True})
        _look_again(row.node)
    return Effect(target=name, changed=changed, now=LEAVES)


@transaction.atomic
def cordon(actor: Actor, node: str) -> Effect:
    """Place no new replicas and placeholders on the node; what runs there continues. Raises NotFound."""
    reconciler.lock(wait=True)
    row = lookup.node(node)
    changed = _set_cordoned(actor, row, True)
    return Effect(
        target=f"node {row.name}", changed=changed, now="is cordoned: nothing new starts, what runs continues"
    )


@transaction.atomic
def uncordon(actor: Actor, node: str) -> Effect:
    """Allow the node again. Replicas of a drained node that have not begun to stop stay. Raises NotFound."""
    reconciler.lock(wait=True)
    row = lookup.node(node)
    changed = _set_cordoned(actor, row, False)
    drained = row.replicas.filter(leaving=True, desired_state=Replica.Desired.RUNNING)
    if changed:
        drained.update(leaving=False)
    return Effect(target=f"node {row.name}", changed=changed, now="takes replicas and placeholders")


@transaction.atomic
def evict(actor: Actor, placeholder: str) -> Effect:
    """Free a placeholder's slot: its lease ends at once and its processes are killed.

    Its pool makes a new one once no replica starts on the node, unless it keeps fewer by then; so this renews a
    placeholder that went wrong. Raises NotFound, Ambiguous; Refused if it has become a replica.
    """
    reconciler.lock(wait=True)
    row = lookup.placeholder(placeholder)
    name = f"placeholder {lookup.short(row.id)}"
    if row.state == _Held.PROMOTED:
        raise Refused("placeholder", lookup.short(row.id), f"it has become {_replica_of(row)}", "drain that")
    changed = bool(slot_leases.evict([row.id], f"evicted by {actor.name}"))
    if changed:
        audit.record(
            actor,
            "placeholder.evicted",
            ("placeholder", row.id),
            before={"state": row.state},
            after={"state": "evicting"},
        )
        _look_again(row.node)
    state = "evicting" if changed else row.state
    wanted = row.node.pool.placeholders_per_node
    refill = f"; {row.node.pool.name} keeps {wanted} on each node and makes a new one" if wanted else ""
    return Effect(target=name, changed=changed, now=f"is {state}{refill}")


@transaction.atomic
def warm(actor: Actor, pool: str, per_node: int, level: str | None = None) -> Effect:
    """Set how many placeholders the pool keeps on each node, and at which level; None leaves the level.

    Placeholders of another level are evicted and replaced. Raises NotFound, BadCount, BadValue.
    """
    reconciler.lock(wait=True)
    row = lookup.pool(pool)
    if not 0 <= per_node <= MAX_PLACEHOLDERS:
        raise BadCount(per_node, f"0 to {MAX_PLACEHOLDERS}", "placeholders")
    if level is not None and level not in LEVELS:
        raise BadValue("placeholder level", level, " or ".join(LEVELS))
    before = {"placeholders_per_node": row.placeholders_per_node, "placeholder_level": row.placeholder_level}
    after = {"placeholders_per_node": per_node, "placeholder_level": level or row.placeholder_level}
    if before != after:
        row.placeholders_per_node, row.placeholder_level = per_node, level or row.placeholder_level
        row.save(update_fields=list(after))
        held = Placeholder.objects.filter(node__pool=row, state__in=placeholder_pools.LEASED_STATES)
        other = list(held.exclude(target_level=row.placeholder_level).values_list("id", flat=True))
        slot_leases.evict(other, f"its pool now keeps {row.placeholder_level}")
        audit.record(actor, "pool.warmed", ("pool", row.id), before=before, after=after)
        tasks.hint(row.nodes.values_list("name", flat=True))
    return Effect(
        target=f"pool {row.name}",
        changed=before != after,
        now=f"keeps {per_node} placeholders at {row.placeholder_level} on each node",
    )


@transaction.atomic
def promote(actor: Actor, placeholder: str, deployment: str) -> Effect:
    """Make a warm placeholder a replica of the deployment: one more than it has, within its maximum.

    Scaling may stop the replica later, like any other. Raises NotFound, Ambiguous, and Refused with the reason.
    """
    reconciler.lock(wait=True)
    target = lookup.deployment(deployment)
    row = lookup.placeholder(placeholder)
    name = f"placeholder {lookup.short(row.id)}"
    if row.state == _Held.PROMOTED and row.replica.deployment_id == target.id:
        return Effect(target=name, changed=False, now=f"is {_replica_of(row)}")
    _check_promotable(row, target)
    desired = _room_for_one_more(target)
    before = {"desired_replicas": target.desired_replicas}
    Deployment.objects.filter(id=target.id).update(desired_replicas=desired)
    replica = reconciler.reserve(target, row.node_id, promote=row.id)
    if replica is None:
        raise Refused(
            "placeholder",
            lookup.short(row.id),
            f"node {row.node.name} has no {target.slots_per_replica} slots to give",
            "evict what holds them, or choose a placeholder of another node",
        )
    after = {"desired_replicas": desired, "replica": str(replica.id), "deployment": target.name}
    audit.record(actor, "placeholder.promoted", ("placeholder", row.id), before=before, after=after)
    _look_again(row.node)
    return Effect(target=name, changed=True, now=f"is replica {target.name}/{lookup.short(replica.id)}")


@transaction.atomic
def restore(actor: Actor, node: str, device_uuid: str) -> Effect:
    """Use a quarantined slot again; its agent may quarantine it again. Raises NotFound; Refused if it is gone."""
    reconciler.lock(wait=True)
    row = lookup.slot(node, device_uuid)
    if row.health == Slot.Health.GONE:
        raise Refused(
            "slot",
            f"{node} {device_uuid}",
            "its node does not have it now",
            "it returns by itself when the node has it again",
        )
    changed = row.health == Slot.Health.QUARANTINED
    if changed:
        before = {"health": row.health, "fault": row.fault}
        Slot.objects.filter(id=row.id).update(health=Slot.Health.OK, fault="")
        audit.record(actor, "slot.restored", ("slot", row.id), before=before, after={"health": Slot.Health.OK.value})
        tasks.hint((node,))
    return Effect(target=f"slot {node} {device_uuid}", changed=changed, now="is ok")


@transaction.atomic
def rollout_pause(actor: Actor, deployment: str) -> Effect:
    """Pause the deployment's rollout; see ``rollouts.pause``. Raises NotFound, Refused."""
    return _rolled(*rollouts.pause(actor, deployment), "is paused: its old and new replicas stay as they are")


@transaction.atomic
def rollout_resume(actor: Actor, deployment: str) -> Effect:
    """Resume the deployment's rollout; see ``rollouts.resume``. Raises NotFound, Refused."""
    return _rolled(*rollouts.resume(actor, deployment), "goes on")


@transaction.atomic
def rollout_undo(actor: Actor, deployment: str) -> Effect:
    """Return to what the deployment served before; see ``rollouts.undo``. Raises NotFound, Refused."""
    row, changed = rollouts.undo(actor, deployment)
    goal = rollouts.as_wanted(lookup.deployment(deployment)).revision
    return _rolled(row, changed, f"returns to revision {goal.digest[:12]}")


@transaction.atomic
def rollout_restart(actor: Actor, deployment: str) -> Effect:
    """Replace every replica by another one of the same revision. Raises NotFound, Refused."""
    return _rolled(rollouts.restart(actor, deployment), True, "replaces every replica by another one")


@transaction.atomic
def rollout_policy(actor: Actor, deployment: str, settings: str | dict[str, Any]) -> Effect:
    """Change how the deployment's replicas are replaced; what is left out stays. Raises NotFound, BadValue."""
    row = lookup.deployment(deployment)
    given = policies.parse(settings) if isinstance(settings, str) else settings
    wanted = policies.changed(policies.read(row.rollout), given)
    changed = rollouts.set_policy(actor, row.name, wanted)
    count = len(wanted.canaries)
    now = f"replaces its replicas by {policies.words(wanted)}, {count} canaries"
    return Effect(target=f"deployment {row.name}", changed=changed, now=now)


@transaction.atomic
def drain_node(actor: Actor, name: str) -> Effect:
    """Cordon a node, replace its replicas and evict its placeholders. Raises NotFound."""
    reconciler.lock(wait=True)
    node = lookup.node(name)
    cordoned = _set_cordoned(actor, node, True, quietly=True)
    running = node.replicas.filter(desired_state=Replica.Desired.RUNNING).exclude(state__in=reconciler.ENDED)
    left = _leave(actor, list(running.order_by("id")))
    ids = list(node.placeholders.filter(state__in=placeholder_pools.LEASED_STATES).values_list("id", flat=True))
    evicted = slot_leases.evict(ids, f"its node is drained by {actor.name}")
    changed = cordoned or left or bool(evicted)
    if changed:
        after = {"cordoned": True, "replicas": running.count(), "placeholders_evicted": evicted}
        audit.record(actor, "node.drained", ("node", node.id), before={"cordoned": not cordoned}, after=after)
        _look_again(node)
    now = f"is cordoned; each of its {running.count()} replicas {LEAVES}"
    return Effect(target=f"node {node.name}", changed=changed, now=now)


def _rolled(row: Rollout, changed: bool, now: str) -> Effect:
    return Effect(target=f"rollout of {row.deployment.name}", changed=changed, now=now)


def _leave(actor: Actor, replicas: list[Replica]) -> bool:
    """Mark the replicas for replacement, and return whether any was not marked before."""
    fresh = [row for row in replicas if not row.leaving]
    Replica.objects.filter(id__in=[row.id for row in replicas]).update(leaving=True, moves_back=False)
    reason = f"drained by {actor.name}: it {LEAVES}"
    ReplicaEvent.objects.bulk_create(
        ReplicaEvent(replica=row, from_state=row.state, to_state=row.state, reason=reason) for row in fresh
    )
    return bool(fresh)


def _set_cordoned(actor: Actor, node: Node, cordoned: bool, *, quietly: bool = False) -> bool:
    """Set the mark, and return whether that changed it. ``quietly`` leaves the audit entry to the caller."""
    if node.cordoned == cordoned:
        return False
    Node.objects.filter(id=node.id).update(cordoned=cordoned)
    if not quietly:
        action = "node.cordoned" if cordoned else "node.uncordoned"
        audit.record(actor, action, ("node", node.id), before={"cordoned": not cordoned}, after={"cordoned": cordoned})
        _look_again(node)
    return True


def _look_again(node: Node | None) -> None:
    tasks.hint((node.name,) if node is not None else ())


def _replica_of(row: Placeholder) -> str:
    """Return the name of the replica that the placeholder became."""
    return f"replica {row.replica.deployment.name}/{lookup.short(row.replica.id)}"


def _check_promotable(row: Placeholder, target: Deployment) -> None:
    """Raise Refused unless the placeholder can become a replica of the deployment as it is."""
    engine = target.revision.engine
    pools = list(
        DeploymentPool.objects.filter(deployment=target).order_by("sequence").values_list("pool__name", flat=True)
    )
    instead = "choose a warm one; `celery -A hearth fleet placeholders` lists them"
    if (rollout := rollouts.open_of(target)) is not None:
        why, instead = f"the rollout of {target.name} is {rollout.state}", "wait for its end"
    elif row.state == _Held.PROMOTED:
        why = f"it has become {_replica_of(row)}"
    elif (row.state, row.level) != (_Held.WARM, Level.H2):
        why = f"it is {row.state} at {row.level}, and only a warm h2 has a process to promote"
    elif row.engine != engine:
        why = f"it has imported {row.engine}, and {target.name} runs on {engine}"
    elif promotion.offered(row) != promotion.needed(target.revision):
        why = f"it has imported its engine for {_kind_of(row)}, and {target.name} is {_kind(target.revision)}"
    elif row.slot_count != promotion.slots_needed(target.slots_per_replica, row.node.pool.kind):
        sees = "one GPU" if row.slot_count == 1 else f"{row.slot_count} GPUs"
        why = f"its process sees {sees}, and a replica of {target.name} takes {target.slots_per_replica}"
    elif row.node.pool.name not in pools:
        why, instead = f"{target.name} does not run in pool {row.node.pool.name}", f"its pools are {', '.join(pools)}"
    elif not weights.are_ready(target.revision, row.node_id):
        why, instead = f"node {row.node.name} does not have the files of {target.name} yet", "wait until it has"
    elif row.node.cordoned:
        why, instead = f"node {row.node.name} is cordoned", "uncordon it first"
    else:
        return
    raise Refused("placeholder", lookup.short(row.id), why, instead)


def _kind_of(row: Placeholder) -> str:
    return _kind(row.deployment.revision) if row.deployment else "no model"


def _kind(revision: ModelRevision) -> str:
    """Return in words whether vLLM imports with HF_HUB_OFFLINE, as for a model whose files are all on the node."""
    offline = is_offline(revision.engine, revision.source, revision.engine_args)
    return "a model without access to the hub" if offline else "a model with access to the hub"


def _room_for_one_more(target: Deployment) -> int:
    """Return the desired replicas with one more than there are. Raises Refused beyond the maximum."""
    over = (*reconciler.ENDED,)
    there = target.replicas.filter(desired_state=Replica.Desired.RUNNING, leaving=False).exclude(state__in=over).count()
    if there >= target.max_replicas:
        most = target.max_replicas
        instead = f"allow more: scale {target.name} {min(target.min_replicas, most)}-{most + 1}"
        raise Refused("deployment", target.name, f"it has {there} of at most {most} replicas", instead)
    return max(target.desired_replicas, there + 1)

"""The open rollouts: their replicas as facts for a plan, whether they stay within their bounds, and their end."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from catalogue import registry
from catalogue.models import ModelRevision
from tenants import audit
from tenants.audit import SYSTEM, Actor
from workers.models import Deployment, Replica, ReplicaEvent, Rollout, SlotLease
from workers.scheduler import placeholder_pools
from workers.scheduler.rollout import deployment_pools
from workers.serving import gateway_load, rollout_policy, rollout_traffic
from workers.serving.rollout_policy import LEAST_REQUESTS, SLOW_SHARE, RolloutPolicy

_State = Rollout.State
_Canary = Replica.Canary
_Replica = Replica.State


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRollout:
    """An open rollout. ``proven``: one of its replicas has passed its canary. ``serving`` are replicas of it."""

    row: Rollout
    policy: RolloutPolicy
    proven: bool
    serving: frozenset[UUID]
    draining: int
    #: Which gateway does not send requests to which of its replicas yet, as a sentence; empty if all do.
    unrouted: str


def open_rollouts() -> dict[UUID, OpenRollout]:
    """Return the open rollouts by deployment, after undoing those that have passed a bound.

    Call it inside reconcile's transaction.
    """
    rows = list(
        Rollout.objects.filter(finished_at=None)
        .select_related("deployment", "revision")
        .select_for_update(of=("self",), no_key=True)
        .order_by("id")
    )
    if not rows:
        return {}
    draining = _draining([row.deployment_id for row in rows])
    return {row.deployment_id: _open(row, draining[row.deployment_id]) for row in rows}


def _open(row: Rollout, draining: int) -> OpenRollout:
    policy = rollout_policy.read(row.deployment.rollout)
    if row.state != _State.UNDOING and (why := _bound_passed(row, policy)):
        undo(SYSTEM, row, why)
    replicas = row.replicas.filter(desired_state=Replica.Desired.RUNNING)
    old_enough = _old_enough(replicas.values_list("id", flat=True), policy.min_ready_seconds)
    serving = gateway_load.routed_by_all(old_enough) if old_enough else set()
    return OpenRollout(
        row=row,
        policy=policy,
        proven=row.replicas.filter(canary=_Canary.PASSED).exists(),
        serving=frozenset(serving),
        draining=draining,
        unrouted=_unrouted(old_enough - serving),
    )


def undo(actor: Actor, row: Rollout, why: str, *, pools: bool = True) -> None:
    """Begin to undo a rollout; with ``pools`` its deployment gets its earlier ones back. The caller has the lock.

    That is the lock of reconcile.
    """
    if pools and row.earlier_pools is not None:
        deployment_pools.change(row.deployment, row.earlier_pools)
    row.state, row.reason, row.waits_for = _State.UNDOING, why[:500], ""
    row.save(update_fields=["state", "reason", "waits_for"])
    audit.record(actor, "rollout.undoing", ("deployment", row.deployment_id), after={"reason": row.reason})


def counted_serving(opened: OpenRollout, serving: int) -> int:
    """Return the most replicas that served at once since the rollout began, and store it if that is now."""
    if serving > opened.row.most_serving:
        opened.row.most_serving = serving
        Rollout.objects.filter(id=opened.row.id).update(most_serving=serving)
    return opened.row.most_serving


def note_waits(opened: Collection[OpenRollout], waits_for: Mapping[UUID, str]) -> None:
    """Store what each rollout waits for."""
    for each in opened:
        text = (waits_for.get(each.row.id) or each.unrouted)[:500]
        if each.row.waits_for != text:
            Rollout.objects.filter(id=each.row.id).update(waits_for=text)


def finish(opened: Collection[OpenRollout], finished: Collection[UUID]) -> None:
    """End rollouts that are done, whose revision becomes that of the deployment, and those that are undone.

    Call it last in reconcile's transaction: it raises the policy epoch.
    """
    for each in opened:
        if each.row.id not in finished:
            continue
        row = each.row
        if row.state == _State.UNDOING:
            end(SYSTEM, row, _State.UNDONE, row.reason)
        else:
            serve(row.deployment, row.revision, row.slots_per_replica)
            end(SYSTEM, row, _State.DONE, "every replica is of the new revision")
            registry.activate(SYSTEM, row.revision)


def serve(deployment: Deployment, revision: ModelRevision, slots_per_replica: int) -> None:
    """Make this the revision of the deployment, and evict placeholders that cannot become it."""
    placeholder_pools.evict_unfit(deployment, revision, slots_per_replica)
    deployment.revision, deployment.slots_per_replica = revision, slots_per_replica
    deployment.save(update_fields=["revision", "slots_per_replica"])


def end(actor: Actor, row: Rollout, state: Rollout.State, reason: str) -> None:
    """End a rollout. If it is done, its replicas are ordinary ones from then on."""
    Rollout.objects.filter(id=row.id).update(state=state, reason=reason[:500], waits_for="", finished_at=Now())
    after = {"revision": str(row.revision_id), "reason": reason[:500]}
    audit.record(actor, f"rollout.{state}", ("deployment", row.deployment_id), after=after)


def _bound_passed(row: Rollout, policy: RolloutPolicy) -> str:
    """Return which bound the rollout has passed, with figures; empty if none."""
    failed = row.replicas.filter(canary=_Canary.FAILED).order_by("-id").first()
    if failed is not None:
        return f"the canary of replica {str(failed.id)[-6:]} failed: {failed.canary_note}"
    ended = ReplicaEvent.objects.filter(replica__rollout=row, to_state__in=(_Replica.BACKOFF, _Replica.FAILED))
    starts = ended.count()
    if starts > policy.max_failed_starts:
        last = row.replicas.exclude(last_error="").order_by("-state_since").values_list("last_error", flat=True).first()
        return f"{starts} starts of new replicas failed, {policy.max_failed_starts} may; the last: {last or 'unknown'}"
    seen = rollout_traffic.of_rollout(row.id)
    counted = max(seen.requests, LEAST_REQUESTS)
    if seen.failures > policy.max_error_share * counted:
        return (
            f"new replicas failed {seen.failures} of {seen.requests} requests; "
            f"{policy.max_error_share:.3g} of {counted} may fail"
        )
    if policy.max_ttft_seconds is not None and seen.slow > SLOW_SHARE * counted:
        return (
            f"the first token of {seen.slow} of {seen.requests} requests to new replicas took longer than "
            f"{policy.max_ttft_seconds:g} s; {SLOW_SHARE:.3g} of {counted} may"
        )
    return ""


def _unrouted(replicas: Collection[UUID]) -> str:
    """Return which gateways do not send requests to these replicas; empty if there are none."""
    if not replicas:
        return ""
    names = ", ".join(sorted(str(each)[-6:] for each in replicas))
    silent = ", ".join(gateway_load.not_routing(replicas)) or "a gateway"
    return f"{silent} must send requests to {names}: within seconds, unless it is of an earlier version or lacks a key"


def _old_enough(replicas: Collection[UUID], min_ready_seconds: float) -> set[UUID]:
    """Return those that are ready and passed their canary long enough ago."""
    ids = list(replicas)
    if not ids:
        return set()
    since = Now() - dt.timedelta(seconds=min_ready_seconds)
    ready = Replica.objects.filter(id__in=ids, state=Replica.State.READY, leaving=False)
    old_enough = ready.filter(canary=_Canary.PASSED, canary_at__lte=since, state_since__lte=since)
    return set(old_enough.values_list("id", flat=True))


def _draining(deployments: Sequence[UUID]) -> Counter[UUID]:
    """Count the replicas of each deployment that are not wanted and still hold slots."""
    holds = Exists(SlotLease.objects.filter(replica=OuterRef("pk"), released_at=None))
    rows = Replica.objects.filter(holds, deployment__in=deployments, desired_state=Replica.Desired.STOPPED)
    return Counter(rows.values_list("deployment_id", flat=True))

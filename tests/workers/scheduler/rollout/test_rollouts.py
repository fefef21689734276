"""Rollouts in the real database, tick by tick; engines and gateways are rows."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models import F
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.workers.conftest import Fleet, add_node
from workers.errors import BadValue, Refused
from workers.fleet import deployments, operations, rollouts
from workers.models import (
    Deployment,
    DeploymentPool,
    GatewayLoad,
    Node,
    Pool,
    Replica,
    ReplicaEvent,
    Rollout,
    RolloutTraffic,
)
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases
from workers.serving import rollout_policy
from workers.serving.rollout_policy import CanaryPrompt, RolloutPolicy

pytestmark = pytest.mark.django_db

QUICK = RolloutPolicy(min_ready_seconds=0)


def other_revision(fleet: Fleet, digest: str = "1") -> ModelRevision:
    """Make a revision of the fleet's model that is not active."""
    return ModelRevision.objects.create(
        model=fleet.revision.model,
        source="/new",
        digest=digest * 64,
        engine="simulated",
        context_length_tokens=64,
        superseded_at=Now(),
    )


def serving(fleet: Fleet, replicas: int, policy: RolloutPolicy = QUICK) -> Deployment:
    """Make a deployment whose replicas all serve."""
    deployment = fleet.deploy(replicas)
    rollouts.set_policy(SYSTEM, "chat", policy)
    reconciler.tick()
    make_ready()
    return deployment


def make_ready() -> None:
    """Do what the agents would: renew their leases, start what was placed, and end what is not wanted."""
    Node.objects.filter(lease_expires_at__gt=Now()).update(lease_expires_at=Now() + reconciler.LEASE)
    Replica.objects.filter(state="reserved").update(
        state="ready", host="127.0.0.1", port=4711, generation=1, state_since=Now()
    )
    for row in Replica.objects.filter(desired_state="stopped").exclude(state="stopped"):
        Replica.objects.filter(id=row.id).update(state="stopped")
        slot_leases.release(replica_id=row.id)


def roll(fleet: Fleet, digest: str = "1") -> Rollout:
    """Begin a rollout to another revision."""
    revision = other_revision(fleet, digest)
    deployments.redeploy(SYSTEM, "chat", revision=revision, pools=[fleet.pool])
    return Rollout.objects.get(finished_at=None)


def kinds() -> list[tuple[str, str]]:
    """Return the digest's first digit and the canary of each wanted replica."""
    rows = Replica.objects.filter(desired_state="running").order_by("id").values_list("revision__digest", "canary")
    return [(digest[0], canary) for digest, canary in rows]


def to_the_end(rollout: Rollout, ticks: int = 20) -> Rollout:
    """Tick, and do the agents' work, until the rollout has ended."""
    for _ in range(ticks):
        reconciler.tick()
        make_ready()
        rollout.refresh_from_db()
        if rollout.finished_at is not None:
            return rollout
    raise AssertionError(f"{rollout.state}: {rollout.waits_for}; {kinds()}")


def active() -> str:
    """Return the first digit of the active revision's digest."""
    return ModelRevision.objects.get(superseded_at=None).digest[0]


def test_the_old_revision_serves_until_the_new_one_does(fleet: Fleet) -> None:
    deployment = serving(fleet, 2)
    rollout = roll(fleet)
    assert (active(), kinds()) == ("0", [("0", ""), ("0", "")])
    reconciler.tick()
    assert kinds() == [("0", ""), ("0", ""), ("1", "pending")]
    make_ready()
    reconciler.tick()
    assert kinds() == [("0", ""), ("0", ""), ("1", "passed")]
    assert to_the_end(rollout).state == "done"
    deployment.refresh_from_db()
    assert (active(), deployment.revision_id, deployment.slots_per_replica) == ("1", rollout.revision_id, 1)
    assert [digest for digest, _ in kinds()] == ["1", "1"]
    actions = AuditEntry.objects.filter(action__startswith="rollout.").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["rollout.started", "rollout.done"]


def test_the_same_deployment_twice_begins_nothing(fleet: Fleet) -> None:
    serving(fleet, 1)
    rollout = roll(fleet)
    deployments.redeploy(SYSTEM, "chat", revision=rollout.revision, pools=[fleet.pool])
    assert Rollout.objects.count() == 1
    to_the_end(rollout)
    deployments.redeploy(SYSTEM, "chat", revision=rollout.revision, pools=[fleet.pool])
    assert Rollout.objects.count() == 1


def test_a_deployment_of_which_nothing_serves_is_replaced_at_once(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    newer = other_revision(fleet)
    deployments.redeploy(SYSTEM, "chat", revision=newer, pools=[fleet.pool])
    assert not Rollout.objects.exists()
    assert active() == "1"
    reconciler.tick()
    assert kinds() == [("1", "")]


def test_nothing_stops_before_every_gateway_routes_to_what_replaces_it(fleet: Fleet) -> None:
    deployment = serving(fleet, 1)
    rollout = roll(fleet)
    loads = [GatewayLoad.objects.create(process=name, deployment=deployment) for name in ("gateway/1", "gateway/2")]
    for _ in range(3):
        reconciler.tick()
        make_ready()
    assert kinds() == [("0", ""), ("1", "passed")]
    new = Replica.objects.get(rollout=rollout)
    GatewayLoad.objects.filter(id=loads[0].id).update(replicas=[new.id])
    reconciler.tick()
    assert len(kinds()) == 2
    GatewayLoad.objects.filter(id=loads[1].id).update(replicas=[new.id])
    assert to_the_end(rollout).state == "done"


def test_an_old_replica_stays_until_the_new_one_has_served_for_a_while(fleet: Fleet) -> None:
    serving(fleet, 1, RolloutPolicy(min_ready_seconds=3600))
    rollout = roll(fleet)
    for _ in range(4):
        reconciler.tick()
        make_ready()
    assert kinds() == [("0", ""), ("1", "passed")]
    earlier = Now() - dt.timedelta(hours=2)
    Replica.objects.filter(rollout=rollout).update(canary_at=earlier, state_since=earlier)
    assert to_the_end(rollout).state == "done"


@pytest.mark.parametrize(
    ("requests", "failures", "slow", "policy", "why"),
    [
        (100, 6, 0, QUICK, "failed 6 of 100 requests"),
        (3, 2, 0, QUICK, "failed 2 of 3 requests"),
        (100, 0, 6, RolloutPolicy(min_ready_seconds=3600, max_ttft_seconds=0.5), "longer than 0.5 s"),
    ],
)
def test_traffic_beyond_a_bound_undoes_it(
    fleet: Fleet, requests: int, failures: int, slow: int, policy: RolloutPolicy, why: str
) -> None:
    serving(fleet, 3, policy)
    rollout = roll(fleet)
    reconciler.tick()
    make_ready()
    reconciler.tick()
    new = Replica.objects.get(rollout=rollout)
    RolloutTraffic.objects.create(process="gateway/1", replica=new, requests=requests, failures=failures, slow=slow)
    ended = to_the_end(rollout)
    assert ended.state == "undone"
    assert why in ended.reason
    assert (active(), [digest for digest, _ in kinds()]) == ("0", ["0", "0", "0"])


def test_a_failure_or_a_slow_answer_alone_does_not_undo_it(fleet: Fleet) -> None:
    serving(fleet, 2, RolloutPolicy(min_ready_seconds=0, max_ttft_seconds=0.5))
    rollout = roll(fleet)
    reconciler.tick()
    make_ready()
    reconciler.tick()
    new = Replica.objects.filter(rollout=rollout).first()
    assert new is not None
    RolloutTraffic.objects.create(process="gateway/1", replica=new, requests=1, failures=1, slow=1)
    assert to_the_end(rollout).state == "done"


def test_starts_that_fail_undo_it(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    reconciler.tick()
    failing = Replica.objects.get(rollout=rollout)
    Replica.objects.update_or_create(id=failing.id, defaults={"state": "backoff", "last_error": "out of memory"})
    for _ in range(3):
        ReplicaEvent.objects.create(replica=failing, from_state="starting", to_state="backoff")
    ended = to_the_end(rollout)
    assert ended.state == "undone"
    assert ended.reason == "3 starts of new replicas failed, 2 may; the last: out of memory"
    assert kinds() == [("0", ""), ("0", "")]


def test_a_canary_that_fails_undoes_it_and_gets_no_requests(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    reconciler.tick()
    Replica.objects.filter(rollout=rollout).update(canary="failed", canary_note="prompt 1 of 1: nonsense")
    ended = to_the_end(rollout)
    assert ended.state == "undone"
    assert "nonsense" in ended.reason


def test_without_room_replicas_are_replaced_one_by_one(fleet: Fleet) -> None:
    serving(fleet, 4)
    rollout = roll(fleet)
    least = 4
    for _ in range(30):
        reconciler.tick()
        least = min(least, Replica.objects.filter(state="ready", desired_state="running").count())
        make_ready()
        rollout.refresh_from_db()
        if rollout.finished_at:
            break
    assert (rollout.state, least) == ("done", 3)


def test_without_room_and_without_leave_to_be_missing_it_is_refused_with_figures(fleet: Fleet) -> None:
    serving(fleet, 4, RolloutPolicy(max_unavailable=0, min_ready_seconds=0))
    with pytest.raises(Refused) as refused:
        roll(fleet)
    assert "n1 has 0 free and 4 of old replicas; 0 replicas may be missing now" in refused.value.why
    add_node(fleet.pool, "n2")
    assert to_the_end(roll(fleet, "2")).state == "done"


def test_a_larger_gang_that_fits_nowhere_is_refused(fleet: Fleet) -> None:
    serving(fleet, 1)
    with pytest.raises(Refused) as refused:
        deployments.redeploy(SYSTEM, "chat", revision=other_revision(fleet), pools=[fleet.pool], slots_per_replica=8)
    assert "a replica takes 8 slots of one node" in refused.value.why
    assert not Rollout.objects.exists()


def test_a_policy_that_would_never_move_is_refused(fleet: Fleet) -> None:
    fleet.deploy(1)
    with pytest.raises(BadValue):
        rollouts.set_policy(SYSTEM, "chat", RolloutPolicy(max_surge=0, max_unavailable=0))


def test_it_is_paused_resumed_and_undone_on_demand(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    reconciler.tick()
    make_ready()
    assert rollouts.pause(SYSTEM, "chat")[1]
    assert not rollouts.pause(SYSTEM, "chat")[1]
    for _ in range(4):
        reconciler.tick()
        make_ready()
    assert [digest for digest, _ in kinds()] == ["0", "0", "1"]
    assert rollouts.resume(SYSTEM, "chat")[1]
    assert to_the_end(rollout).state == "done"
    rollouts.undo(SYSTEM, "chat")
    back = Rollout.objects.get(finished_at=None)
    assert to_the_end(back).state == "done"
    assert (active(), [digest for digest, _ in kinds()]) == ("0", ["0", "0"])


def test_an_open_one_is_undone_to_what_serves(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    reconciler.tick()
    make_ready()
    rollouts.undo(SYSTEM, "chat")
    assert to_the_end(rollout).state == "undone"
    assert (active(), kinds()) == ("0", [("0", ""), ("0", "")])
    with pytest.raises(Refused):
        rollouts.undo(SYSTEM, "chat")


def test_deploying_the_earlier_revision_again_undoes_it(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    deployments.redeploy(SYSTEM, "chat", revision=fleet.revision, pools=[fleet.pool])
    assert to_the_end(rollout).state == "undone"


def pools_of(deployment: Deployment) -> list[str]:
    rows = DeploymentPool.objects.filter(deployment=deployment).order_by("sequence")
    return list(rows.values_list("pool__name", flat=True))


def staying() -> list[tuple[str, bool]]:
    """Return the pool of each wanted replica, and whether it leaves."""
    rows = Replica.objects.filter(desired_state="running").order_by("id")
    return list(rows.values_list("node__pool__name", "leaving"))


@pytest.mark.parametrize("when", ["open", "done"])
def test_an_undo_gives_the_pools_back(fleet: Fleet, when: str) -> None:
    deployment = serving(fleet, 1)
    other = Pool.objects.create(name="other", kind="simulated", region="us")
    add_node(other, "n2")
    deployments.redeploy(SYSTEM, "chat", revision=other_revision(fleet), pools=[other])
    rollout = Rollout.objects.get()
    assert (pools_of(deployment), staying()) == (["other"], [("local", True)])
    if when == "done":
        to_the_end(rollout)
        assert staying() == [("other", False)]
    made, changed = rollouts.undo(SYSTEM, "chat")
    assert (changed, pools_of(deployment)) == (True, ["local"])
    if when == "open":
        assert staying() == [("local", False)]  # it need not leave any more
    to_the_end(made)
    assert (staying(), active()) == ([("local", False)], "0")
    if when == "done":
        rollouts.undo(SYSTEM, "chat")
        assert pools_of(deployment) == ["other"]


def test_a_bound_that_is_passed_gives_the_pools_back(fleet: Fleet) -> None:
    deployment = serving(fleet, 1)
    other = Pool.objects.create(name="other", kind="simulated", region="us")
    add_node(other, "n2")
    deployments.redeploy(SYSTEM, "chat", revision=other_revision(fleet), pools=[other, fleet.pool])
    reconciler.tick()
    make_ready()
    Replica.objects.exclude(rollout=None).update(canary="failed", canary_note="it said no")
    assert to_the_end(Rollout.objects.get()).state == "undone"
    assert pools_of(deployment) == ["local"]


def test_pools_that_somebody_changed_since_stay(fleet: Fleet) -> None:
    deployment = serving(fleet, 1)
    other, third = (Pool.objects.create(name=name, kind="simulated", region="us") for name in ("other", "third"))
    add_node(other, "n2")
    rollout = roll(fleet)
    deployments.redeploy(SYSTEM, "chat", revision=rollout.revision, pools=[fleet.pool, other, third])
    rollouts.undo(SYSTEM, "chat")
    assert pools_of(deployment) == ["local", "other", "third"]


def test_another_revision_meanwhile_takes_its_place(fleet: Fleet) -> None:
    serving(fleet, 2)
    first = roll(fleet)
    reconciler.tick()
    make_ready()
    second = roll(fleet, "2")
    first.refresh_from_db()
    assert first.state == "replaced"
    assert to_the_end(second).state == "done"
    assert (active(), [digest for digest, _ in kinds()]) == ("2", ["2", "2"])


def test_what_a_replaced_one_made_goes_when_its_successor_is_undone(fleet: Fleet) -> None:
    serving(fleet, 2)
    roll(fleet)
    reconciler.tick()
    make_ready()
    reconciler.tick()
    assert ("1", "passed") in kinds()
    second = roll(fleet, "2")
    rollouts.undo(SYSTEM, "chat")
    assert to_the_end(second).state == "undone"
    assert kinds() == [("0", ""), ("0", "")]
    assert active() == "0"


def test_a_gateway_that_does_not_follow_is_named(fleet: Fleet) -> None:
    deployment = serving(fleet, 1)
    rollout = roll(fleet)
    GatewayLoad.objects.create(process="gateway/1", deployment=deployment)
    for _ in range(3):
        reconciler.tick()
        make_ready()
    rollout.refresh_from_db()
    assert rollout.waits_for.startswith("gateway/1 must send requests to ")


def test_every_replica_is_replaced_by_its_like_on_demand(fleet: Fleet) -> None:
    serving(fleet, 2)
    before = set(Replica.objects.values_list("id", flat=True))
    rollout = rollouts.restart(SYSTEM, "chat")
    assert to_the_end(rollout).state == "done"
    after = set(Replica.objects.filter(desired_state="running").values_list("id", flat=True))
    assert (len(after), after & before, active()) == (2, set(), "0")


def test_other_pools_move_only_the_replicas_outside_of_them(fleet: Fleet) -> None:
    serving(fleet, 2)
    other = deployments.ensure_pool(SYSTEM, name="other", kind="simulated")
    add_node(other, "n2")
    deployments.redeploy(SYSTEM, "chat", revision=fleet.revision, pools=[fleet.pool, other])
    reconciler.tick()
    assert not Replica.objects.filter(leaving=True).exists()
    deployments.redeploy(SYSTEM, "chat", revision=fleet.revision, pools=[other])
    assert not Rollout.objects.exists()
    for _ in range(4):
        reconciler.tick()
        make_ready()
    placed = Replica.objects.filter(desired_state="running").values_list("node__name", flat=True)
    assert list(placed) == ["n2", "n2"]


def test_archiving_ends_it(fleet: Fleet) -> None:
    serving(fleet, 1)
    rollout = roll(fleet)
    reconciler.tick()
    deployments.archive(SYSTEM, fleet.revision.model)
    rollout.refresh_from_db()
    assert rollout.state == "replaced"
    reconciler.tick()
    assert kinds() == []


def test_a_lost_old_replica_is_replaced_by_its_like_before_the_canary_passed(fleet: Fleet) -> None:
    serving(fleet, 2)
    rollout = roll(fleet)
    reconciler.tick()
    old = Replica.objects.filter(rollout=None).first()
    assert old is not None
    Replica.objects.filter(id=old.id).update(state="lost")
    reconciler.tick()
    assert sorted(kinds()) == [("0", ""), ("0", ""), ("1", "pending")]
    Replica.objects.filter(rollout=rollout).update(generation=F("generation") + 1)
    assert to_the_end(rollout).state == "done"


def test_a_policy_is_changed_by_a_verb(fleet: Fleet) -> None:
    fleet.deploy(1)
    kept = RolloutPolicy(canaries=(CanaryPrompt(prompt="hello", is_json=True),))
    rollouts.set_policy(SYSTEM, "chat", kept)
    effect = operations.rollout_policy(SYSTEM, "chat", "max_surge=3 max_unavailable=0")
    assert effect.changed and "max_surge=3 max_unavailable=0" in effect.now and "1 canaries" in effect.now
    assert not operations.rollout_policy(SYSTEM, "chat", "max_surge=3").changed
    with pytest.raises(BadValue):
        operations.rollout_policy(SYSTEM, "chat", "max_surge=0")
    assert rollout_policy.read(Deployment.objects.get().rollout).canaries == kept.canaries

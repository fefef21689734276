"""Operators' verbs against the real database: each twice, each audited once, each refusal with what is allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from catalogue import routing_policy
from tenants.audit import Actor
from tenants.models import AuditEntry
from tests.workers.conftest import Fleet, add_node
from workers.errors import Ambiguous, BadCount, BadValue, NotFound, Refused
from workers.fleet import operations
from workers.fleet.operations import Effect, ScalingTarget
from workers.fleet.status import inventory
from workers.fleet.verbs import VERBS
from workers.models import Deployment, Level, Node, Placeholder, Pool, Replica, ReplicaEvent, Slot, SlotLease
from workers.scheduler import reconciler
from workers.serving import endpoints

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")


def twice(verb: Callable[[], Effect]) -> tuple[Effect, Effect]:
    """Do it, then again; the second time changes nothing and is not audited."""
    first = verb()
    assert first.changed
    count = AuditEntry.objects.count()
    second = verb()
    assert not second.changed and second.target == first.target
    assert AuditEntry.objects.count() == count
    return first, second


def audited(action: str) -> tuple[object, object]:
    """Return before and after of the one entry of the action."""
    entry = AuditEntry.objects.get(action=action)
    assert (entry.actor_kind, entry.actor) == ("user", "ada")
    return entry.before, entry.after


def serve(replicas: int) -> list[Replica]:
    """Make what was placed ready, ``replicas`` in all."""
    for port, row in enumerate(Replica.objects.filter(state="reserved"), start=4711):
        Replica.objects.filter(id=row.id).update(state="ready", host="127.0.0.1", port=port, generation=1)
    rows = list(Replica.objects.filter(state="ready").order_by("id"))
    assert len(rows) == replicas
    return rows


def keep_warm(fleet: Fleet, count: int = 1) -> list[Placeholder]:
    """Let the node's placeholders be made, and warm."""
    operations.warm(ADA, "local", count, "h2")
    for _ in range(count):
        reconciler.tick()
        Placeholder.objects.filter(state="requested").update(state="warm", level=Level.H2, engine="simulated")
    rows = list(Placeholder.objects.filter(state="warm").order_by("id"))
    assert len(rows) == count
    return rows


def served() -> set[object]:
    """Return the replicas that requests can go to."""
    return {endpoint.replica_id for endpoint in endpoints.ready()}


def test_one_number_scales_to_it_and_a_range_lets_scaling_move_between(fleet: Fleet) -> None:
    fleet.deploy(1)
    assert "wants 3 replicas" in twice(lambda: operations.scale(ADA, "chat", 3))[0].now
    assert audited("deployment.scaled") == ({"replicas": 1}, {"replicas": 3})
    effect, _ = twice(lambda: operations.scale(ADA, "chat", 0, 2))
    row = Deployment.objects.get()
    assert (row.min_replicas, row.desired_replicas, row.max_replicas) == (0, 2, 2)
    assert effect.now == "wants 0 to 2 replicas, 2 at the present load"
    after = AuditEntry.objects.filter(action="deployment.scaled").order_by("-id").values_list("after", flat=True)
    assert after[0] == {"minimum": 0, "maximum": 2}
    with pytest.raises(BadCount, match="4 to 1000"):
        operations.scale(ADA, "chat", 4, 3)
    with pytest.raises(NotFound) as unknown:
        operations.scale(ADA, "chatt", 1)
    assert unknown.value.known == ("chat",)


def test_a_scale_that_finds_no_slots_says_so(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    slots = Slot.objects.count()
    assert "no slot" not in operations.scale(ADA, "chat", slots).now
    now = operations.scale(ADA, "chat", slots + 2).now
    assert f"no slot is free for 2 of {slots + 2} replicas; add a node to local" in now
    reconciler.tick()
    (found,) = inventory.read().deployments
    assert (found.without_slot, found.shortage in now) == (2, True)
    Node.objects.update(cordoned=True)
    assert inventory.read().deployments[0].without_slot == 2


def test_the_target_of_scaling_is_set_and_checked(fleet: Fleet) -> None:
    fleet.deploy(1)
    target = ScalingTarget(target_tokens_per_replica=512, scale_up_delay_seconds=1.5, scale_down_delay_seconds=60.0)
    effect, _ = twice(lambda: operations.set_target(ADA, "chat", target))
    assert effect.now == "targets 512 tokens per replica, up after 1.5 s, down after 60 s"
    for bad, complaint in (
        (dataclasses.replace(target, target_tokens_per_replica=0), "tokens per replica"),
        (dataclasses.replace(target, target_tokens_per_replica=2**31), "tokens per replica"),
        (dataclasses.replace(target, scale_up_delay_seconds=-1.0), "seconds of delay"),
        (dataclasses.replace(target, scale_down_delay_seconds=float("nan")), "seconds of delay"),
    ):
        with pytest.raises(BadCount, match=complaint):
            operations.set_target(ADA, "chat", bad)


def test_a_routing_policy_is_set_and_told_to_gateways(fleet: Fleet) -> None:
    fleet.deploy(1)
    policy = routing_policy.parse("expected-seconds:displaced=0.5")
    effect, _ = twice(lambda: operations.route(ADA, "chat", policy))
    assert effect.now == "routes by expected-seconds:displaced=0.5"
    assert audited("deployment.routed") == (
        {"policy": "expected-seconds"},
        {"policy": "expected-seconds:displaced=0.5"},
    )
    reconciler.tick()
    serve(1)
    assert [each.routing.policy for each in endpoints.ready()] == [policy]
    assert inventory.read().deployments[0].routing == policy
    operations.route(ADA, "chat", routing_policy.DEFAULT)
    assert Deployment.objects.get().routing is None
    assert endpoints.ready()[0].routing == routing_policy.DEFAULT_ROUTING
    Deployment.objects.update(routing={"policy": {"name": "of-a-newer-version"}})
    assert endpoints.ready()[0].routing == routing_policy.DEFAULT_ROUTING


@pytest.mark.parametrize("text", ["", "random", "round-robin:decode=2", "expected-seconds:decode"])
def test_a_routing_policy_that_there_is_not_is_refused(fleet: Fleet, text: str) -> None:
    fleet.deploy(1)
    with pytest.raises(BadValue):
        VERBS["route"].execute(ADA, {"deployment": "chat", "policy": text})
    assert Deployment.objects.get().routing is None


def test_a_drained_replica_serves_until_its_replacement_does(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    (old,) = serve(1)
    first, _ = twice(lambda: operations.drain(ADA, str(old.id)[-6:]))
    assert first.now == operations.LEAVES
    audited("replica.drained")
    reconciler.tick()
    reconciler.tick()
    assert served() == {old.id} and Replica.objects.count() == 2
    serve(2)
    reconciler.tick()
    new = Replica.objects.get(desired_state="running")
    assert served() == {new.id} and new.id != old.id
    old.refresh_from_db()
    assert old.desired_state == "stopped" and old.drain_deadline is not None
    reasons = list(ReplicaEvent.objects.filter(replica=old).order_by("-id").values_list("reason", flat=True))[:2]
    assert reasons == ["an operator drained it", f"drained by ada: it {operations.LEAVES}"]
    again = operations.drain(ADA, f"chat/{str(old.id)[-6:]}")
    assert not again.changed and again.now == "is ready and not wanted"


def test_a_drained_node_empties_onto_another_and_uncordon_takes_back_what_has_not_begun(fleet: Fleet) -> None:
    fleet.deploy(2)
    reconciler.tick()
    serve(2)
    keep_warm(fleet)
    effect, _ = twice(lambda: operations.drain(ADA, "n1"))
    assert effect.now == f"is cordoned; each of its 2 replicas {operations.LEAVES}"
    assert audited("node.drained")[1] == {"cordoned": True, "replicas": 2, "placeholders_evicted": 1}
    assert Placeholder.objects.get().state == "evicting"
    twice(lambda: operations.uncordon(ADA, "n1"))
    reconciler.tick()
    assert Replica.objects.count() == 2
    operations.drain(ADA, "n1")
    other = add_node(fleet.pool, "n2")
    reconciler.tick()
    assert Replica.objects.filter(node=other).count() == 2 and len(served()) == 2
    serve(4)
    reconciler.tick()
    assert served() == set(other.replicas.values_list("id", flat=True))


def test_a_node_without_another_is_drained_all_the_same(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    serve(1)
    operations.drain(ADA, "n1")
    reconciler.tick()
    assert served() == set()


def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    serve(1)
    twice(lambda: operations.cordon(ADA, "n1"))
    operations.scale(ADA, "chat", 2)
    operations.warm(ADA, "local", 1)
    reconciler.tick()
    assert (Replica.objects.count(), Placeholder.objects.count(), len(served())) == (1, 0, 1)
    twice(lambda: operations.uncordon(ADA, "n1"))
    reconciler.tick()
    assert Replica.objects.count() == 2
    with pytest.raises(NotFound) as unknown:
        operations.cordon(ADA, "n2")
    assert unknown.value.known == ("n1",)


def test_an_evicted_placeholder_frees_its_slot_and_its_pool_makes_another(fleet: Fleet) -> None:
    fleet.deploy(0)
    (row,) = keep_warm(fleet)
    effect, _ = twice(lambda: operations.evict(ADA, str(row.id)))
    assert effect.now == "is evicting; local keeps 1 on each node and makes a new one"
    assert not SlotLease.objects.filter(released_at=None).exists()
    reconciler.tick()
    assert Placeholder.objects.get(state="requested").id != row.id


def test_a_pool_keeps_as_many_placeholders_as_it_is_told_at_the_level_it_is_told(fleet: Fleet) -> None:
    fleet.deploy(0)
    keep_warm(fleet, 2)
    effect, _ = twice(lambda: operations.warm(ADA, "local", 2, "h0"))
    assert effect.now == "keeps 2 placeholders at h0 on each node"
    assert set(Placeholder.objects.values_list("state", flat=True)) == {"evicting"}
    reconciler.tick()
    assert Placeholder.objects.get(state="requested").target_level == "h0"
    twice(lambda: operations.warm(ADA, "local", 0))
    reconciler.tick()
    assert not Placeholder.objects.filter(state="requested").exists()
    assert Pool.objects.get().placeholder_level == "h0"
    with pytest.raises(BadValue, match="h0 or h2"):
        operations.warm(ADA, "local", 1, "h9")
    with pytest.raises(BadCount, match="0 to 64"):
        operations.warm(ADA, "local", 65)


def test_a_promoted_placeholder_is_one_more_replica_within_the_maximum(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    serve(1)
    (row,) = keep_warm(fleet)
    with pytest.raises(Refused, match="scale chat 1-2"):
        operations.promote(ADA, str(row.id), "chat")
    operations.scale(ADA, "chat", 1, 2)
    effect, again = twice(lambda: operations.promote(ADA, str(row.id), "chat"))
    replica = Replica.objects.get(placeholder=row)
    assert (replica.state, replica.start_level) == ("reserved", "h2")
    assert Deployment.objects.get().desired_replicas == 2
    assert effect.now.endswith(f"chat/{str(replica.id)[-6:]}") and again.now.endswith(f"chat/{str(replica.id)[-6:]}")
    with pytest.raises(Refused, match="drain that"):
        operations.evict(ADA, str(row.id))
    reconciler.tick()
    assert Replica.objects.filter(desired_state="running").count() == 2


def test_what_cannot_be_promoted_is_refused_with_the_reason(fleet: Fleet) -> None:
    fleet.deploy(0)
    operations.scale(ADA, "chat", 0, 3)
    (row,) = keep_warm(fleet)
    identity = str(row.id)
    Placeholder.objects.update(engine="vllm")
    with pytest.raises(Refused, match="runs on simulated"):
        operations.promote(ADA, identity, "chat")
    Placeholder.objects.update(engine="simulated", state="warming")
    with pytest.raises(Refused, match="it is warming"):
        operations.promote(ADA, identity, "chat")
    Placeholder.objects.update(state="warm")
    Node.objects.update(cordoned=True)
    with pytest.raises(Refused, match="uncordon it first"):
        operations.promote(ADA, identity, "chat")
    Node.objects.update(cordoned=False)
    Deployment.objects.update(slots_per_replica=9)
    with pytest.raises(Refused, match="has no 9 slots"):
        operations.promote(ADA, identity, "chat")
    assert Deployment.objects.get().desired_replicas == 0 and not Replica.objects.exists()


def test_a_quarantined_slot_is_used_again_and_one_that_is_gone_is_not(fleet: Fleet) -> None:
    Slot.objects.filter(device_uuid="cpu-0").update(health="quarantined", fault="it did not become free")
    twice(lambda: operations.restore(ADA, "n1", "cpu-0"))
    assert audited("slot.restored")[0] == {"health": "quarantined", "fault": "it did not become free"}
    Slot.objects.filter(device_uuid="cpu-1").update(health="gone")
    with pytest.raises(Refused, match="does not have it"):
        operations.restore(ADA, "n1", "cpu-1")
    with pytest.raises(NotFound) as unknown:
        operations.restore(ADA, "n1", "gpu-0")
    assert unknown.value.known == ("cpu-0", "cpu-1", "cpu-2", "cpu-3")


def test_an_end_that_several_ids_have_names_them(fleet: Fleet) -> None:
    fleet.deploy(2)
    reconciler.tick()
    with pytest.raises(Ambiguous) as several:
        operations.drain(ADA, "chat/")
    assert set(several.value.candidates) == {str(row.id) for row in Replica.objects.all()}
    with pytest.raises(NotFound) as unknown:
        operations.drain(ADA, "zzzzzz")
    assert len(unknown.value.known) == 2

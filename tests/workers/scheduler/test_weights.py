"""Replicas get slots only on nodes that have their model's files, which those nodes fetch first."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tenants.ids import new_id
from tests import hub
from tests.workers.conftest import Fleet, add_node, expire_lease
from workers.agent.store.replica_rows import NodeRows
from workers.fleet import deployments
from workers.fleet.status import inventory
from workers.models import Deployment, Node, Replica, SlotLease, Weights
from workers.scheduler import reconciler, weights
from workers.scheduler.plan import plan
from workers.scheduler.slots.placement import DeploymentView, NodeView, ReplicaView, WeightsState


def of_hub(fleet: Fleet) -> ModelRevision:
    """Make the fleet's model one of the hub."""
    ModelRevision.objects.filter(id=fleet.revision.id).update(
        source=hub.MODEL, engine="vllm", engine_args=["--revision", hub.OLD]
    )
    fleet.revision.refresh_from_db()
    return fleet.revision


def ready(node: str) -> None:
    Weights.objects.filter(node__name=node).update(state="ready", folder="/cache", bytes_done=9, bytes_total=9)


def test_no_slot_is_leased_while_the_files_are_fetched(fleet: Fleet) -> None:
    of_hub(fleet)
    fleet.deploy(2)
    reconciler.tick()
    row = Weights.objects.get()
    assert (row.node.name, row.state) == ("n1", "wanted")
    assert (Replica.objects.count(), SlotLease.objects.count()) == (0, 0)
    ready("n1")
    reconciler.tick()
    assert (Replica.objects.count(), SlotLease.objects.count()) == (2, 2)
    assert Weights.objects.count() == 1


def test_a_folder_has_nothing_to_fetch(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    assert (Weights.objects.count(), Replica.objects.count()) == (0, 1)


def test_a_replica_goes_where_the_files_are(fleet: Fleet) -> None:
    of_hub(fleet)
    add_node(fleet.pool, "n2")
    fleet.deploy(3)
    reconciler.tick()
    assert Weights.objects.count() == 2
    ready("n2")
    reconciler.tick()
    assert set(Replica.objects.values_list("node__name", flat=True)) == {"n2"}


def test_only_nodes_that_may_get_a_replica_fetch(fleet: Fleet) -> None:
    of_hub(fleet)
    add_node(fleet.pool, "small", slots=1)
    expire_lease(add_node(fleet.pool, "silent"))
    deployments.create(
        SYSTEM, name="wide", revision=fleet.revision, pools=(fleet.pool,), replicas=1, slots_per_replica=2
    )
    reconciler.tick()
    assert list(Weights.objects.values_list("node__name", flat=True)) == ["n1"]


def test_files_stay_wanted_at_zero_and_go_with_the_deployment(fleet: Fleet) -> None:
    of_hub(fleet)
    fleet.deploy(0)
    reconciler.tick()
    assert not Weights.objects.exists()
    deployments.scale(SYSTEM, "chat", 1, 2)
    reconciler.tick()
    deployments.scale(SYSTEM, "chat", 0, 2)
    reconciler.tick()
    assert Weights.objects.count() == 1
    deployments.archive(SYSTEM, fleet.revision.model)
    reconciler.tick()
    assert not Weights.objects.exists()


def replaced(fleet: Fleet, *arguments: str) -> None:
    """Give the fleet's deployment a revision with the same source."""
    ModelRevision.objects.update(superseded_at=Now())
    revision = ModelRevision.objects.create(
        model=fleet.revision.model,
        source=hub.MODEL,
        digest="2" * 64,
        engine="vllm",
        engine_args=[*arguments],
        context_length_tokens=0,
    )
    Deployment.objects.update(revision=revision)


def test_another_option_of_the_engine_needs_no_fetch(fleet: Fleet) -> None:
    of_hub(fleet)
    fleet.deploy(1)
    reconciler.tick()
    ready("n1")
    replaced(fleet, "--revision", hub.OLD, "--max-num-seqs", "2")
    reconciler.tick()
    row = Weights.objects.get()
    assert (row.revision.digest, row.state, row.folder, row.bytes_total) == ("2" * 64, "ready", "/cache", 9)
    assert Replica.objects.filter(revision=row.revision).exists()


@pytest.mark.parametrize(
    "arguments", [("--revision", hub.NEW), ("--revision", hub.OLD, "--load-format", "mistral")], ids=" ".join
)
def test_other_files_are_fetched(fleet: Fleet, arguments: tuple[str, ...]) -> None:
    of_hub(fleet)
    fleet.deploy(1)
    reconciler.tick()
    ready("n1")
    replaced(fleet, *arguments)
    reconciler.tick()
    row = Weights.objects.get()
    assert (row.revision.digest, row.state) == ("2" * 64, "wanted")


def test_the_fleet_says_how_far_the_files_are(fleet: Fleet) -> None:
    of_hub(fleet)
    fleet.deploy(1)
    reconciler.tick()
    assert inventory.obstacles("chat") == "waiting to fetch files on node n1"
    Weights.objects.update(state="fetching", bytes_done=6_600_000_000, bytes_total=16_100_000_000)
    assert inventory.obstacles("chat") == "fetching 40 % of 16.1 GB on node n1"
    Weights.objects.update(bytes_done=16_100_000_000)
    assert inventory.obstacles("chat") == "checking 16.1 GB on node n1"
    Weights.objects.update(state="failed", error="no space")
    assert inventory.obstacles("chat") == "files cannot be fetched on node n1: no space"
    ready("n1")
    assert inventory.obstacles("chat") == ""


def test_an_agent_of_a_version_that_does_not_fetch_gets_replicas(fleet: Fleet) -> None:
    revision = of_hub(fleet)
    Node.objects.update(epoch=3)
    fleet.deploy(1)
    reconciler.tick()
    assert (Weights.objects.count(), Replica.objects.count()) == (0, 1)
    assert weights.are_ready(revision, fleet.node.id)
    taken = NodeRows.take("n1")
    Replica.objects.update(desired_state="stopped")
    reconciler.tick()
    assert (Weights.objects.get().state, Replica.objects.count()) == ("wanted", 1)
    assert not weights.are_ready(revision, taken.node_id)


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        ("wanted", (0, 0)),
        ("fetching", (0, 0)),
        ("ready", (1, 0)),
        # The operator wants the slots, and no other node is about to have the files.
        ("failed", (0, 1)),
    ],
)
def test_a_drained_replica_serves_on_while_another_node_fetches(state: WeightsState, steps: tuple[int, int]) -> None:
    pool, here, there = new_id(), new_id(), new_id()
    leaving = ReplicaView(id=new_id(), state="ready", node_id=here, pool_id=pool, requests=0, leaving=True)
    view = DeploymentView(
        id=new_id(),
        desired=1,
        pool_ids=(pool,),
        replicas=(leaving,),
        import_class="vllm",
        weights={there: state},
    )
    found = plan([view], [NodeView(id=there, name="there", pool_id=pool, replicas=0, free=1)])
    assert (len(found.place), len(found.stop)) == steps

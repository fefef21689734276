"""Replicas and placeholders get a place only where the version of their engine is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db.models import F

from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tenants.errors import BadName
from tests.workers.conftest import Fleet, add_node
from tests.workers.scheduler.rollout.test_rollouts import QUICK, make_ready, serving, to_the_end
from workers.errors import Refused
from workers.fleet import deployments, engine_versions, model_options, rollouts
from workers.fleet.model_options import OptionChange
from workers.fleet.status import inventory
from workers.models import Deployment, Node, Placeholder, Pool, Replica, Rollout
from workers.scheduler import reconciler
from workers.serving import promotion

pytestmark = pytest.mark.django_db


def has(node: Node, *engines: str) -> None:
    """Let a node report these versions."""
    Node.objects.filter(id=node.id).update(engines=list(engines), engines_epoch=F("epoch"))


def pin(fleet: Fleet, version: str) -> ModelRevision:
    """Let the fleet's revision name a version."""
    ModelRevision.objects.filter(id=fleet.revision.id).update(engine_version=version)
    fleet.revision.refresh_from_db()
    return fleet.revision


def move(version: str) -> Rollout:
    """Move the deployment to another version of its engine, as `hearth deploy --engine-version` does."""
    found = Deployment.objects.select_related("revision__model__owner").get(name="chat")
    registered = catalogue.described(found.revision, found.slots_per_replica)
    assert registered is not None, "made by registry.record"
    reconciler.lock(wait=True)
    wanted = model_options.changed(found, OptionChange(engine_version=version))
    model_options.apply(SYSTEM, found, wanted)
    return Rollout.objects.get(finished_at=None)


@pytest.fixture
def described(fleet: Fleet) -> Fleet:
    """The fleet with a revision whose digest is that of its description, on a node with two versions."""
    wanted = catalogue.Description(
        name=fleet.revision.model.name,
        source="/models/tiny",
        engine="simulated",
        context_length_tokens=2048,
        engine_version="1",
    )
    revision = catalogue.register(SYSTEM, fleet.revision.model.owner, wanted)
    has(fleet.node, "simulated 1", "simulated 2")
    return Fleet(fleet.pool, fleet.node, revision)


def test_a_version_is_part_of_the_digest_and_none_adds_nothing_to_it() -> None:
    plain = catalogue.Description(name="m", source="/m", engine="simulated", context_length_tokens=64)
    one, other = (
        catalogue.Description(
            name="m", source="/m", engine="simulated", context_length_tokens=64, engine_version=version
        )
        for version in ("1", "2")
    )
    assert len({plain.digest(), one.digest(), other.digest()}) == 3
    # as without the field, so that no revision that is stored changes
    assert plain.digest() == "3c0c4d7ea5bf36bfe4e1fcef81af90e91d9ea73bad4a45765ff484c2a7d68d08"


def test_a_replica_goes_where_its_version_is_and_the_others_are_named_with_what_to_do(fleet: Fleet) -> None:
    pin(fleet, "2")
    other = add_node(fleet.pool, "a-first")
    has(fleet.node, "simulated 1", "simulated 2")
    has(other, "simulated 1")
    fleet.deploy(1)
    reconciler.tick()
    assert Replica.objects.get().node == fleet.node
    told = inventory.obstacles("chat")
    assert told == (
        "a-first has no simulated 2: run `hearth engine install` there, with --lock if it is not the checkout's"
    )


def test_a_node_that_reports_nothing_gets_revisions_without_a_version_alone(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    assert Replica.objects.count() == 1
    pin(fleet, "1")
    fleet.deploy(1, name="pinned")
    reconciler.tick()
    assert Replica.objects.count() == 1


def test_what_an_earlier_agent_reported_does_not_count(fleet: Fleet) -> None:
    pin(fleet, "1")
    has(fleet.node, "simulated 1")
    Node.objects.update(epoch=F("epoch") + 1)
    fleet.deploy(1)
    reconciler.tick()
    assert not Replica.objects.exists()


def test_another_version_comes_by_a_rollout_and_goes_by_its_undo(described: Fleet) -> None:
    deployment = serving(described, 2)
    rollout = move("2")
    assert (rollout.revision.engine_version, rollout.earlier_revision.engine_version) == ("2", "1")
    assert engine_versions.needed_by("n1", "simulated", "2", is_default=False) == ["the rollout of chat"]
    assert to_the_end(rollout).state == "done"
    running = Replica.objects.filter(desired_state="running").values_list("revision__engine_version", flat=True)
    assert list(running) == ["2", "2"]
    back, changed = rollouts.undo(SYSTEM, "chat")
    assert changed and to_the_end(back).state == "done"
    deployment.refresh_from_db()
    assert deployment.revision == described.revision


def test_a_rollout_to_a_version_that_no_node_has_is_refused_with_the_command(described: Fleet) -> None:
    serving(described, 1)
    has(described.node, "simulated 1")
    wanted = catalogue.described(described.revision, 1)
    assert wanted is not None
    with pytest.raises(Refused, match="no node of its pools has simulated 9: run `hearth engine install`"):
        revision = catalogue.record(SYSTEM, described.revision.model.owner, replace(wanted, engine_version="9"))
        deployments.redeploy(SYSTEM, "chat", revision=revision, pools=[described.pool])


def test_a_beginning_names_a_version_if_only_one_has_it(fleet: Fleet) -> None:
    has(fleet.node, "vllm 0.32.0-aaaaaaaaaaaa", "vllm 0.33.0-bbbbbbbbbbbb", "vllm 0.33.0-cccccccccccc")
    assert engine_versions.resolve("vllm", "0.32") == "0.32.0-aaaaaaaaaaaa"
    assert engine_versions.resolve("vllm", "0.34.0-dddddddddddd") == "0.34.0-dddddddddddd", "its nodes are yet to come"
    for asked in ("0.33.0", "", "0.34"):
        with pytest.raises(BadName) as refused:
            engine_versions.resolve("vllm", asked)
        assert "0.33.0-bbbbbbbbbbbb, 0.33.0-cccccccccccc" in refused.value.allowed


def test_a_new_model_gets_the_version_that_most_nodes_have_of_several_the_last(fleet: Fleet) -> None:
    has(fleet.node, "simulated 1", "simulated 2")
    assert engine_versions.for_new_model("simulated", [fleet.pool]) == "2"
    has(add_node(fleet.pool, "n2"), "simulated 1")
    assert engine_versions.for_new_model("simulated", [fleet.pool]) == "1"
    assert engine_versions.for_new_model("vllm", [fleet.pool]) == ""


def test_the_first_version_of_a_node_is_needed_by_revisions_without_one(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    assert engine_versions.needed_by("n1", "simulated", "1", is_default=True) == [
        "a replica of chat",
        "deployment chat",
    ]
    assert engine_versions.needed_by("n1", "simulated", "2", is_default=False) == []
    assert engine_versions.needed_by("elsewhere", "simulated", "1", is_default=True) == []


def test_placeholders_are_of_one_version_and_only_where_it_is(described: Fleet) -> None:
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    described.deploy(1)
    has(described.node, "simulated 2")
    reconciler.tick()
    assert not Placeholder.objects.exists()
    has(described.node, "simulated 1", "simulated 2")
    reconciler.tick()
    make_ready()  # beside a start none is made
    reconciler.tick()
    made = Placeholder.objects.select_related("deployment__revision").get()
    assert promotion.offered(made) == "simulated 1"
    rollouts.set_policy(SYSTEM, "chat", QUICK)
    make_ready()
    to_the_end(move("2"))
    made.refresh_from_db()
    assert made.state == "evicting"

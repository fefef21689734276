"""A model that is renamed goes on serving: engines keep its old name until a rollout has replaced them."""

from __future__ import annotations

import pytest

from portal.fleet import model_changes
from portal.fleet.model_changes import ModelChange
from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node
from tests.workers.scheduler.rollout.test_rollouts import QUICK, make_ready, serving, staying, to_the_end
from workers.fleet import deployments, rollouts
from workers.models import Node, Replica, Rollout
from workers.scheduler import reconciler
from workers.serving import endpoints
from workers.serving.rollout_policy import RolloutPolicy

pytestmark = pytest.mark.django_db


def rename(name: str, new_name: str) -> list[str]:
    """Rename a model, and return what is to be known about it."""
    notes: list[str] = []
    model_changes.change(SYSTEM, name, ModelChange(name=new_name), warn=notes.append)
    return notes


def served() -> list[tuple[str, str]]:
    """Return the name of the model behind each endpoint, and what the engine calls it."""
    return [(each.model_name, each.engine_name) for each in endpoints.ready()]


def test_every_replica_serves_under_its_old_name_until_another_has_its_place(fleet: Fleet) -> None:
    serving(fleet, 2)
    assert rename("tiny-chat", "small") == []
    assert served() == [("small", "tiny-chat")] * 2
    rollout = Rollout.objects.get()
    least = 2
    for _ in range(20):
        reconciler.tick()
        least = min(least, len(served()))
        make_ready()
        rollout.refresh_from_db()
        if rollout.finished_at is not None:
            break
    assert (rollout.state, least, served()) == ("done", 2, [("small", "")] * 2)


def test_a_second_name_comes_before_the_first_is_everywhere(fleet: Fleet) -> None:
    serving(fleet, 1)
    rename("tiny-chat", "small")
    reconciler.tick()
    make_ready()
    rename("small", "tiny")
    names = dict(Replica.objects.order_by("id").values_list("served_name", "desired_state"))
    assert set(names) == {"tiny-chat", "small"}
    assert to_the_end(Rollout.objects.get(finished_at=None)).state == "done"
    assert served() == [("tiny", "")]
    assert set(fleet.revision.model.aliases.values_list("name", flat=True)) == {"tiny-chat", "small"}


def test_without_room_for_another_replica_engines_go_on_under_the_old_name(fleet: Fleet) -> None:
    serving(fleet, 1, RolloutPolicy(min_ready_seconds=0, max_unavailable=0))
    Node.objects.update(cordoned=True)
    [note] = rename("tiny-chat", "small")
    assert note.startswith("Not all engines of small can be replaced now: deployment chat: ")
    assert (served(), staying()) == ([("small", "tiny-chat")], [("local", False)])
    Node.objects.update(cordoned=False)
    rollouts.set_policy(SYSTEM, "chat", QUICK)
    assert to_the_end(rollouts.restart(SYSTEM, "chat")).state == "done"
    assert served() == [("small", "")]


def test_a_deployment_without_room_does_not_keep_others_from_being_replaced(fleet: Fleet) -> None:
    no_surge = RolloutPolicy(min_ready_seconds=0, max_unavailable=0)
    full = deployments.ensure_pool(SYSTEM, name="full", kind="simulated")
    add_node(full, "full-1", slots=2)
    for name in ("a-full", "b-full"):
        fleet.deploy(1, name=name, pools=(full,))
        rollouts.set_policy(SYSTEM, name, no_surge)
    serving(fleet, 1, QUICK)
    [note] = rename("tiny-chat", "small")
    assert "now: deployment a-full: " in note and "; deployment b-full: " in note
    assert list(Rollout.objects.values_list("deployment__name", flat=True)) == ["chat"]

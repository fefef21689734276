"""Rollouts of a model with LoRA adapters: a new replica has them before an old one stops. Engines are rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db.models import F
from django.db.models.functions import Now

from catalogue.models import Model, ModelRevision
from tenants.audit import SYSTEM
from tests import lora
from tests.workers.conftest import Fleet
from tests.workers.scheduler.rollout.test_rollouts import QUICK, kinds, make_ready, other_revision, to_the_end
from workers.errors import Refused
from workers.fleet import deployments, rollouts
from workers.fleet.status import adapters as status
from workers.model_sources import adapters
from workers.model_sources.adapters import AdapterSpec
from workers.models import AdapterLoad, Replica, Rollout
from workers.scheduler import reconciler
from workers.serving import endpoints

pytestmark = pytest.mark.django_db

NAME = "tiny-chat:tone"


@pytest.fixture
def served(fleet: Fleet, tmp_path: Path) -> ModelRevision:
    """Serve the fleet's model, and an adapter that its one replica has; return the adapter's revision."""
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={"lora_adapters": 2})
    fleet.deploy(1)
    rollouts.set_policy(SYSTEM, "chat", QUICK)
    reconciler.tick()
    make_ready()
    revision = adapters.deploy_spec(SYSTEM, AdapterSpec(name=NAME, source=str(lora.write(tmp_path / "tone"))), print)
    reconciler.tick()
    load()
    return revision


def load() -> None:
    """Do what agents do: load the adapters of ready replicas."""
    rows = AdapterLoad.objects.filter(replica__state="ready").annotate(now=F("replica__generation"))
    for row in rows:
        AdapterLoad.objects.filter(id=row.id).update(
            state="loaded", generation=row.now, engine_name=NAME, error="", attempts=0
        )


def fail(attempts: int, **of: object) -> None:
    AdapterLoad.objects.filter(**of).update(
        state="failed", error="rank 99 is too large", attempts=attempts, next_attempt_at=Now()
    )


def roll(fleet: Fleet, options: dict[str, int]) -> Rollout:
    revision = other_revision(fleet)
    ModelRevision.objects.filter(id=revision.id).update(options=options)
    revision.refresh_from_db()
    deployments.redeploy(SYSTEM, "chat", revision=revision, pools=[fleet.pool])
    return Rollout.objects.get(finished_at=None)


def test_a_new_replica_takes_no_requests_until_it_has_the_adapters(fleet: Fleet, served: ModelRevision) -> None:
    rollout = roll(fleet, {"lora_adapters": 4})
    reconciler.tick()
    make_ready()
    for _ in range(3):
        reconciler.tick()
    assert kinds() == [("0", ""), ("1", "pending")]
    new = Replica.objects.get(rollout=rollout)
    assert new.canary_note == f"waits for the adapters {NAME}"
    assert [each.replica_id for each in endpoints.ready()] == [Replica.objects.get(rollout=None).id]
    fail(1, replica=new)  # an attempt may fail
    reconciler.tick()
    assert kinds() == [("0", ""), ("1", "pending")]
    load()
    assert to_the_end(rollout).state == "done"
    assert [each.replica_id for each in endpoints.loaded_adapters()] == [new.id]


def test_a_rollout_whose_engine_refuses_an_adapter_that_is_served_is_undone(
    fleet: Fleet, served: ModelRevision
) -> None:
    rollout = roll(fleet, {"lora_adapters": 4})
    reconciler.tick()
    make_ready()
    fail(3, replica__rollout=rollout)
    ended = to_the_end(rollout)
    assert (ended.state, kinds()) == ("undone", [("0", "")])
    assert f"the adapter {NAME} cannot be loaded: rank 99 is too large" in ended.reason


def test_an_adapter_that_no_replica_could_load_holds_no_rollout_up(fleet: Fleet, served: ModelRevision) -> None:
    fail(5)
    rollout = roll(fleet, {"lora_adapters": 4})
    assert to_the_end(rollout).state == "done"
    assert endpoints.refused_adapters() == {}  # the new replica has not tried
    fail(AdapterLoad.ATTEMPTS - 1)
    assert endpoints.refused_adapters() == {}
    fail(AdapterLoad.ATTEMPTS)
    assert list(endpoints.refused_adapters()) == [NAME]


def test_a_replica_that_replaces_a_drained_one_has_its_adapters_first(fleet: Fleet, served: ModelRevision) -> None:
    old = Replica.objects.get()
    Replica.objects.filter(id=old.id).update(leaving=True)
    reconciler.tick()
    make_ready()
    reconciler.tick()
    assert Replica.objects.get(id=old.id).desired_state == "running"
    load()
    reconciler.tick()
    assert Replica.objects.get(id=old.id).desired_state == "stopped"


def test_while_an_adapter_is_served_its_base_does_not_go_back_to_engines_without_lora(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.deploy(1)
    rollouts.set_policy(SYSTEM, "chat", QUICK)
    reconciler.tick()
    make_ready()
    rollout = roll(fleet, {"lora_adapters": 2})
    spec = AdapterSpec(name=NAME, source=str(lora.write(tmp_path / "tone")))
    adapters.deploy_spec(SYSTEM, spec, print)
    for _ in range(2):  # of the open rollout, then of the last one
        with pytest.raises(Refused) as refused:
            rollouts.undo(SYSTEM, "chat")
        assert refused.value.why == f"those engines would load no adapter, and it has {NAME!r} of rank 8"
        assert f"hearth model archive {NAME}" in refused.value.instead
        to_the_end(rollout)
    Model.objects.filter(name=NAME).update(archived_at=Now())
    made, changed = rollouts.undo(SYSTEM, "chat")
    assert (made.revision_id, changed) == (fleet.revision.id, True)
    assert to_the_end(made).state == "done"
    Model.objects.filter(name=NAME).update(archived_at=None)
    assert "started without LoRA" in status.words(Model.objects.get(name=NAME))
    assert endpoints.refused_adapters() == {NAME: None}


def test_an_adapter_is_refused_only_while_every_replica_failed_and_is_tried_again_when_deployed(
    fleet: Fleet, served: ModelRevision, tmp_path: Path
) -> None:
    deployments.scale(SYSTEM, "chat", 2)
    reconciler.tick()
    make_ready()
    reconciler.tick()
    first, second = AdapterLoad.objects.order_by("id")
    fail(AdapterLoad.ATTEMPTS, id=first.id)
    assert endpoints.refused_adapters() == {}
    fail(AdapterLoad.ATTEMPTS, id=second.id)
    assert list(endpoints.refused_adapters()) == [NAME]
    assert "rank 99 is too large" in status.words(served.model)
    adapters.deploy_spec(SYSTEM, AdapterSpec(name=NAME, source=str(tmp_path / "tone")), print)
    assert set(AdapterLoad.objects.values_list("attempts", "next_attempt_at")) == {(0, None)}
    Replica.objects.update(desired_state="stopped")
    assert endpoints.refused_adapters() == {}

"""A model is renamed while an engine of it runs: the agent goes on with the engine's name, and replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from portal.fleet import model_changes
from portal.fleet.model_changes import ModelChange
from tenants.audit import SYSTEM
from tests.workers.agent_processes import agent_thread, until
from tests.workers.conftest import Fleet
from workers.fleet import rollouts
from workers.models import ReplicaEvent
from workers.scheduler import reconciler
from workers.serving import endpoints
from workers.serving.endpoints import Endpoint
from workers.serving.rollout_policy import CanaryPrompt, RolloutPolicy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def serving() -> tuple[Endpoint, ...]:
    reconciler.tick()
    return endpoints.ready()


def test_a_renamed_models_engine_serves_until_one_with_the_new_name_does(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    policy = RolloutPolicy(min_ready_seconds=0, canaries=(CanaryPrompt(prompt="Who?"),))
    rollouts.set_policy(SYSTEM, "chat", policy)
    with agent_thread(data_dir):
        (first,) = until(serving)
        model_changes.change(SYSTEM, "tiny-chat", ModelChange(name="small"))
    with agent_thread(data_dir):  # the next agent adopts the engine, and knows it by its old name
        assert [each.engine_name for each in serving()] == ["tiny-chat"]
        (second,) = until(lambda: [each for each in serving() if not each.engine_name])
        assert (second.model_name, second.replica_id != first.replica_id) == ("small", True)
        until(lambda: len(serving()) == 1)
    assert not ReplicaEvent.objects.filter(replica=first.replica_id, to_state__in=("suspect", "backoff")).exists()

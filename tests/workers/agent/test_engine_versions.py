"""An agent runs two versions of an engine side by side, and reports which it has."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import cast

import pytest

from catalogue import registry as catalogue
from catalogue.registry import Description
from tenants.audit import SYSTEM
from tenants.ids import ReplicaId
from tests.workers.agent_processes import agent_thread, in_state, settled, warm
from tests.workers.conftest import Fleet
from workers.fleet import deployments
from workers.models import Deployment, Node, Placeholder, Pool, Replica
from workers.serving import engine_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def deploy(fleet: Fleet, name: str, version: str) -> Deployment:
    """Deploy a model of its own with a version of the simulated engine."""
    described = Description(
        name=name, source="/models/tiny", engine="simulated", context_length_tokens=2048, engine_version=version
    )
    revision = catalogue.register(SYSTEM, fleet.revision.model.owner, described)
    return deployments.create(SYSTEM, name=name, revision=revision, pools=[fleet.pool], replicas=1)


def version_of(replica: Replica) -> str:
    """Return what the replica's engine says of its version."""
    key = engine_keys.derive(cast(ReplicaId, replica.id), replica.engine_key)
    request = urllib.request.Request(
        f"http://{replica.host}:{replica.port}/version", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: str = json.load(answer)["version"]
    return found.rpartition(".")[2]


def test_two_versions_serve_side_by_side_and_a_zygote_becomes_its_own_only(fleet: Fleet, data_dir: Path) -> None:
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    one = deploy(fleet, "one", "1")
    Deployment.objects.filter(id=one.id).update(min_replicas=0, desired_replicas=0)
    with agent_thread(data_dir):
        (zygote,) = settled(warm("h2"))
        assert Node.objects.get().known_engines >= {"simulated 1", "simulated 2"}
        deploy(fleet, "two", "2")
        (second,) = settled(in_state("ready"))
        assert (second.start_level, version_of(second)) == ("cold", "2")
        assert Placeholder.objects.get(id=zygote.id).state == "warm"
        Deployment.objects.filter(id=one.id).update(min_replicas=1, desired_replicas=1)
        first = settled(lambda: Replica.objects.filter(deployment=one, state="ready").first())
        assert first is not None and (first.start_level, version_of(first)) == ("h2", "1")

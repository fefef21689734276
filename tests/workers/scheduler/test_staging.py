"""Which models' files nodes should keep in the page cache, as reconcile writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tests import lora
from tests.workers.conftest import Fleet, add_node
from workers.model_sources import adapters
from workers.model_sources.adapters import AdapterSpec
from workers.models import Deployment, DeploymentPool, Node, Pool, StagedWeights
from workers.scheduler import reconciler
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

pytestmark = pytest.mark.django_db


def on_nodes() -> list[str]:
    return sorted(StagedWeights.objects.values_list("node__name", flat=True))


def test_nodes_stage_what_they_may_soon_get_and_only_where_the_pool_says_so(fleet: Fleet) -> None:
    spare = Pool.objects.create(name="spare", kind="simulated")
    add_node(spare, "n2")
    row = fleet.deploy(1, pools=(fleet.pool, spare))
    reconciler.tick()
    assert on_nodes() == []
    Pool.objects.update(staged_share=0.5)
    reconciler.tick()
    assert on_nodes() == []  # it has all the replicas that it may have
    Deployment.objects.filter(id=row.id).update(max_replicas=2)
    reconciler.tick()
    assert on_nodes() == ["n1", "n2"]
    Deployment.objects.filter(id=row.id).update(min_replicas=0, desired_replicas=0, max_replicas=1)
    reconciler.tick()
    assert on_nodes() == ["n1", "n2"]  # scaled to zero
    Deployment.objects.filter(id=row.id).update(requires={"labels": {"net": "ib"}})
    Pool.objects.filter(id=spare.id).update(labels={"net": "ib"})
    reconciler.tick()
    assert on_nodes() == ["n2"]
    Node.objects.filter(name="n2").update(cordoned=True)
    reconciler.tick()
    assert on_nodes() == []


def test_adapters_are_staged_with_a_base_whose_engines_load_them(fleet: Fleet, tmp_path: Path) -> None:
    Pool.objects.update(staged_share=0.5)
    row = fleet.deploy(0)
    Deployment.objects.filter(id=row.id).update(max_replicas=1)
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={"lora_adapters": 2})
    spec = AdapterSpec(name="tiny-chat:tone", source=str(lora.write(tmp_path / "tone")))
    revision = adapters.deploy_spec(SYSTEM, spec, print)
    reconciler.tick()
    assert set(StagedWeights.objects.values_list("revision", flat=True)) == {fleet.revision.id, revision.id}
    ModelRevision.objects.filter(id=fleet.revision.id).update(options={})
    reconciler.tick()
    assert list(StagedWeights.objects.values_list("revision", flat=True)) == [fleet.revision.id]


def test_requests_and_preparation_make_a_model_wanted(fleet: Fleet) -> None:
    Pool.objects.update(staged_share=0.5)
    row = fleet.deploy(0)
    Deployment.objects.filter(id=row.id).update(max_replicas=2)
    reconciler.tick()
    assert StagedWeights.objects.get().wanted_at is None
    gateway_load.report("g1", {row.id: DeploymentLoad(queued_requests=1, queued_tokens=100)}, {row.id})
    reconciler.tick()
    requested = StagedWeights.objects.get().wanted_at
    assert requested == gateway_load.busy_at()[row.id]
    Pool.objects.update(staged_share=0)
    reconciler.tick()
    assert on_nodes() == []
    Pool.objects.update(staged_share=0.5)
    DeploymentPool.objects.filter(deployment=row).update(prepared_replicas=1)
    reconciler.tick()
    prepared = StagedWeights.objects.get().wanted_at
    assert prepared is not None and requested is not None and prepared >= requested

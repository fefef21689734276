"""An agent keeps files of models in the page cache of its node, by a real process, and writes what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catalogue.models import ModelRevision
from hearth.cli.output import fleet_tables
from tests.workers.agent_processes import agent_thread, until
from tests.workers.conftest import Fleet
from workers.models import Deployment, Pool, StagedWeights
from workers.scheduler import reconciler
from workers.weights import page_cache

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
SIZE = 4 << 20


def test_files_are_staged_and_measured(fleet: Fleet, data_dir: Path, tmp_path: Path) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(os.urandom(SIZE))
    with weights.open("rb") as written:
        os.fsync(written.fileno())
    page_cache.drop(weights)
    Pool.objects.update(staged_share=0.5)
    ModelRevision.objects.update(source=str(weights.parent))
    row = fleet.deploy(0)
    Deployment.objects.filter(id=row.id).update(max_replicas=1)
    reconciler.tick()
    with agent_thread(data_dir):
        staged = until(lambda: StagedWeights.objects.exclude(measured_at=None).first())
    assert staged is not None
    assert (staged.bytes_total, staged.bytes_resident, staged.note) == (SIZE, SIZE, "")
    assert page_cache.residency([weights]).bytes_resident == SIZE
    assert "n1    tiny-chat" in fleet_tables.read("staged", 1).text

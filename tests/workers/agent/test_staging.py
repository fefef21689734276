"""An agent keeps files of models in the page cache of its node, by a real process, and writes what is there."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from catalogue.models import ModelRevision
from hearth.cli.output import fleet_tables
from tests.workers.agent_processes import agent_thread, until
from tests.workers.conftest import Fleet
from workers.agent.weights.staged_rows import StagedRow
from workers.agent.weights.staging import Stager
from workers.models import Deployment, Pool, StagedWeights
from workers.scheduler import reconciler
from workers.weights import page_cache
from workers.weights.stage import Staged

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
SIZE = 4 << 20


class _ManyRows:
    """Rows of more folders than a pipe holds the names of."""

    def __init__(self, folders: int) -> None:
        self.folders = folders
        self.found: list[Staged] = []

    def wanted(self) -> tuple[tuple[StagedRow, ...], float]:
        names = (f"/nonexistent/{number}/{'x' * 200}" for number in range(self.folders))
        return tuple(StagedRow(row_id=uuid4(), folder=name) for name in names), 0.5

    def note(self, row: StagedRow, found: Staged) -> None:
        self.found.append(found)


def test_a_report_larger_than_a_pipe_holds_is_read() -> None:
    rows = _ManyRows(400)
    stager = Stager(rows, pause_seconds=0.0)

    def noted() -> bool:
        stager.step()
        return len(rows.found) >= rows.folders

    try:
        until(noted)
    finally:
        stager.stop()
    assert rows.found[0].note.startswith("its files cannot be read: ")


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

"""An agent fetches a model's files in a process of their own, before a replica gets slots on its node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalogue.models import Model, ModelRevision
from tenants.audit import SYSTEM
from tests import hub
from tests.hub import LARGE_BYTES, Hub
from tests.workers.agent_processes import NODE, agent_thread, until
from tests.workers.conftest import Fleet
from workers.agent.processes.process_records import FetchRecord, ProcessRecords
from workers.fleet import deployments
from workers.models import Replica, SlotLease, Weights
from workers.processes import is_running
from workers.scheduler import reconciler
from workers.weights import hub_tokens

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "hf_" + "z" * 34


@pytest.fixture
def known(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve the fleet's model as one of the hub, and deploy two replicas of it."""
    ModelRevision.objects.filter(id=fleet.revision.id).update(
        source=hub.MODEL, engine="vllm", engine_args=["--revision", hub.OLD]
    )
    fleet.revision.refresh_from_db()
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "config.json").write_text("{}")
    (repository / "model.safetensors").write_bytes(bytes(range(256)) * (4 * LARGE_BYTES // 256))
    with hub.running(repository) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "120")  # longer than any pause of the hub here
        monkeypatch.delenv("HF_TOKEN", raising=False)
        fleet.deploy(2)
        reconciler.tick()
        yield found


def processes(data_dir: Path) -> list[FetchRecord]:
    return list(ProcessRecords(data_dir / "engines", NODE).fetches())


def state() -> str:
    return Weights.objects.get().state


def test_files_are_fetched_once_for_two_replicas_before_they_get_slots(known: Hub, data_dir: Path) -> None:
    known.pause_after_bytes = LARGE_BYTES
    with agent_thread(data_dir) as agent:
        until(lambda: known.begun_at)
        reconciler.tick()
        assert (state(), Replica.objects.count(), SlotLease.objects.count()) == ("fetching", 0, 0)
        known.go_on.set()
        until(lambda: state() == "ready")
    assert agent.counters.weights_bytes == 4 * LARGE_BYTES + 2
    row = Weights.objects.get()
    assert (row.bytes_done, row.bytes_total) == (4 * LARGE_BYTES + 2, 4 * LARGE_BYTES + 2)
    assert (Path(row.folder) / "model.safetensors").is_file()
    assert processes(data_dir) == []
    reconciler.tick()
    assert list(Replica.objects.values_list("state", flat=True)) == ["reserved", "reserved"]
    assert known.begun_at == [0]


def test_the_next_agent_adopts_a_running_fetch(known: Hub, data_dir: Path) -> None:
    known.pause_after_bytes = LARGE_BYTES
    with agent_thread(data_dir):
        until(lambda: known.begun_at)
    [left] = processes(data_dir)
    with agent_thread(data_dir) as second:
        until(lambda: second.round_at)
        assert processes(data_dir) == [left]
        known.go_on.set()
        until(lambda: state() == "ready")
    assert second.counters.adopted == 1
    assert known.begun_at == [0]


def test_a_fetch_that_ended_while_no_agent_ran_is_not_repeated(known: Hub, data_dir: Path) -> None:
    known.pause_after_bytes = LARGE_BYTES
    with agent_thread(data_dir):
        until(lambda: known.begun_at)
    [left] = processes(data_dir)
    known.go_on.set()
    until(lambda: not is_running(left.process))
    listed = len(known.tokens)
    with agent_thread(data_dir) as second:
        until(lambda: state() == "ready")
    assert (len(known.tokens), second.counters.weights_failed) == (listed, 0)
    assert processes(data_dir) == []


def test_a_killed_fetch_is_begun_again(known: Hub, data_dir: Path) -> None:
    known.pause_after_bytes = LARGE_BYTES
    with agent_thread(data_dir) as agent:
        until(lambda: known.begun_at)
        known.pause_after_bytes = None
        os.kill(processes(data_dir)[0].pid, signal.SIGKILL)
        until(lambda: state() == "ready")
    assert agent.counters.weights_failed == 1


def test_a_refused_fetch_says_why_and_goes_on_with_the_token(known: Hub, data_dir: Path, fleet: Fleet) -> None:
    known.gated = TOKEN
    with agent_thread(data_dir):
        until(lambda: state() == "failed")
        assert "is gated or private" in Weights.objects.get().error
        hub_tokens.store(SYSTEM, fleet.revision.model, TOKEN)
        until(lambda: state() == "ready")
    assert Weights.objects.get().error == ""
    assert not any(TOKEN in log.read_text() for log in (data_dir / "logs").iterdir())


def test_the_token_of_one_model_is_not_sent_for_another(known: Hub, data_dir: Path, fleet: Fleet) -> None:
    other = Model.objects.create(name="other", owner=fleet.revision.model.owner)
    hub_tokens.store(SYSTEM, other, TOKEN)
    known.gated = TOKEN
    with agent_thread(data_dir):
        until(lambda: state() == "failed")
    assert set(known.tokens) == {None}


def test_a_process_that_cannot_be_started_is_a_failed_fetch(known: Hub, data_dir: Path) -> None:
    log = data_dir / "logs" / f"weights-{str(Weights.objects.get().id)[-8:]}.log"
    log.mkdir(parents=True)
    with agent_thread(data_dir):
        until(lambda: state() == "failed")
        assert "no process can be started" in Weights.objects.get().error
        log.rmdir()
        until(lambda: state() == "ready")


def test_what_nobody_needs_any_more_is_not_fetched_on(known: Hub, data_dir: Path, fleet: Fleet) -> None:
    known.pause_after_bytes = LARGE_BYTES
    with agent_thread(data_dir):
        until(lambda: known.begun_at)
        deployments.archive(SYSTEM, fleet.revision.model)
        reconciler.tick()
        until(lambda: not processes(data_dir))
    assert not Weights.objects.exists()


def test_files_that_somebody_removed_are_fetched_again(known: Hub, data_dir: Path) -> None:
    with agent_thread(data_dir):
        until(lambda: state() == "ready")
        (Path(Weights.objects.get().folder) / "model.safetensors").resolve().unlink()
        until(lambda: len(known.begun_at) == 2 and state() == "ready")


def test_links_to_folders_are_not_followed(known: Hub, data_dir: Path) -> None:
    with agent_thread(data_dir):
        until(lambda: state() == "ready")
        folder = Path(Weights.objects.get().folder)
        lost = folder / "model.safetensors"
        (data_dir / "elsewhere").mkdir()
        (data_dir / "elsewhere" / "large").write_bytes(lost.read_bytes())
        (folder / "loop").symlink_to(folder)
        (folder / "link").symlink_to(data_dir / "elsewhere")
        lost.resolve().unlink()
        until(lambda: len(known.begun_at) == 2 and state() == "ready")

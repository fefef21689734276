"""Engines under a system account of their own: root starts them, and they can read neither secrets nor passwords."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from pytest_django.fixtures import Settings

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tests import hub
from tests.workers.agent_processes import agent_thread, end_everything, in_state, settled, until, warm
from tests.workers.conftest import Fleet
from workers.agent.processes import engine_account
from workers.agent.processes.engine_account import EngineAccount, require_readable
from workers.agent.processes.process_records import ProcessRecords
from workers.models import Deployment, Pool, Replica, Weights
from workers.scheduler import reconciler
from workers.system_account import AccountUnusable
from workers.weights import hub_tokens

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory that other users may enter, as `hearth up` makes it for root."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-"))
    folder.chmod(0o711)
    yield folder
    end_everything(folder)
    shutil.rmtree(folder)


@pytest.fixture(name="account")
def _account(data_dir: Path, settings: Settings) -> EngineAccount:
    """Let engines run as nobody, who exists everywhere; skip where that user cannot read the checkout."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    account = engine_account.engine_account("nobody")
    try:
        require_readable(account, account.home(data_dir))
    except AccountUnusable as unusable:
        pytest.skip(unusable.problem)
    settings.ENGINE_USER = "nobody"
    return account


def environment(pid: int) -> Mapping[str, str]:
    """Return the variables that a process started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_engines_and_placeholders_run_as_their_own_user(
    fleet: Fleet, data_dir: Path, account: EngineAccount, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("PGPASSWORD", "of somebody else")
    monkeypatch.setenv("NAMED_BY_OPERATOR", "1")
    settings.ENGINE_ENVIRONMENT = ("NAMED_*",)
    secret = data_dir / "secrets.json"
    secret.write_text("{}")
    secret.chmod(0o600)
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    deployment = fleet.deploy(1)
    Deployment.objects.filter(id=deployment.id).update(min_replicas=0, desired_replicas=0)
    with agent_thread(data_dir):
        settled(warm("h2"))
        Deployment.objects.filter(id=deployment.id).update(desired_replicas=2, max_replicas=2)
        Deployment.objects.filter(id=deployment.id).update(min_replicas=2)
        rows = settled(in_state("ready", 2))
        assert sorted(row.start_level for row in rows) == ["cold", "h2"], "one was spawned, one promoted"
        for row in rows:
            assert row.pid is not None
            check_rights(row.pid, data_dir)
        until(lambda: Replica.objects.filter(observed_at__isnull=False).count() == 2)
        for hidden in (secret, data_dir / "logs", data_dir / "engines", Path(f"/proc/{os.getpid()}/environ")):
            tried = subprocess.run(
                account.command(["/bin/cat", str(hidden)]), capture_output=True, check=False, cwd="/"
            )
            assert tried.returncode != 0 and b"denied" in tried.stderr, hidden
        sockets = (data_dir / "s").stat()
        assert (sockets.st_uid, sockets.st_gid, sockets.st_mode & 0o7777) == (0, NOBODY.pw_gid, 0o1770)
    reconciler.tick()


def test_a_fetch_runs_as_the_user_of_engines_and_into_their_home(
    fleet: Fleet, data_dir: Path, account: EngineAccount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ModelRevision.objects.update(source=hub.MODEL, engine="vllm", engine_args=["--revision", hub.OLD])
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(hub.LARGE_BYTES))
    hub_tokens.store(SYSTEM, fleet.revision.model, "hf_token")
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub.running(tmp_path) as known, agent_thread(data_dir):
        known.gated, known.pause_after_bytes = "hf_token", hub.LARGE_BYTES // 2
        monkeypatch.setenv("HF_ENDPOINT", known.url)
        fleet.revision.refresh_from_db()
        fleet.deploy(1)
        reconciler.tick()
        until(lambda: known.begun_at)
        [record] = ProcessRecords(data_dir / "engines", fleet.node.name).fetches()
        assert psutil.Process(record.pid).uids().real == NOBODY.pw_uid
        tried = ["/bin/cat", f"/proc/{record.pid}/environ"]
        seen = subprocess.run(account.command(tried), capture_output=True, check=False, cwd="/")
        assert seen.returncode != 0 and b"denied" in seen.stderr, "an engine reads nothing of a process with a token"
        known.go_on.set()
        until(lambda: Weights.objects.filter(state="ready"))
    folder = Path(Weights.objects.get().folder)
    assert folder.is_relative_to(data_dir / engine_account.HOME)
    assert (folder / "model.safetensors").stat().st_uid == NOBODY.pw_uid


def check_rights(pid: int, data_dir: Path) -> None:
    """Assert that an engine is nobody's, without rights, secrets or a home of root's."""
    engine = psutil.Process(pid)
    assert (*engine.uids(), *engine.gids()) == (NOBODY.pw_uid,) * 3 + (NOBODY.pw_gid,) * 3
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status
    found = environment(pid)
    assert found["HOME"] == str(data_dir / engine_account.HOME)
    assert (found["USER"], found["NAMED_BY_OPERATOR"], found.get("PGPASSWORD")) == ("nobody", "1", None)


def test_an_engine_that_keeps_the_user_gains_no_rights_either(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    with agent_thread(data_dir):
        [row] = settled(in_state("ready"))
        assert row.pid is not None
        assert "NoNewPrivs:\t1" in Path(f"/proc/{row.pid}/status").read_text()
        assert (data_dir / "s").stat().st_mode & 0o7777 == 0o700


def test_a_checkout_that_the_user_cannot_read_is_named_with_the_remedy(data_dir: Path, account: EngineAccount) -> None:
    hidden = data_dir / "hidden"
    hidden.mkdir(mode=0o700)
    with pytest.raises(AccountUnusable, match=f"run as nobody, which cannot read {hidden}") as found:
        require_readable(account, hidden)
    assert "HEARTH_ENGINE_USER=root" in found.value.remedy


def test_a_user_that_does_not_exist_is_named_with_the_command_that_makes_it() -> None:
    with pytest.raises(AccountUnusable, match="no user hearth-nowhere") as found:
        engine_account.engine_account("hearth-nowhere")
    assert found.value.remedy.startswith("Run: useradd --system") and found.value.remedy.endswith(" hearth-nowhere")

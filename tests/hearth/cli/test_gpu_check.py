"""`hearth gpu-check`, as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from hearth.cli.gpu_check import mismatch
from workers import processes
from workers.agent.processes.paths import OWNER_VARIABLE
from workers.agent.processes.process_records import ProcessRecords, ZygoteRecord
from workers.engines.environment import EngineKind
from workers.gpu_check.bench import Kind
from workers.processes import ProcessIdentity


def _gpu_check(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("hearth")), "gpu-check", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=os.environ | variables)


def test_it_prints_each_check_and_writes_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = _gpu_check("--slots", "fake:2", "--engine", "none", "--python", "/bin/false", "--report", str(report))
    lines = done.stdout.splitlines()
    assert lines[0] == "pass     devices: 2 with a UUID each, none with a fault."
    assert lines[-1] == f"The report is {report}."
    assert lines[-2].startswith("Each device is a fake device; pass: 2, ")
    assert len(json.loads(report.read_text())["checks"]) == len(lines) - 2


def test_a_check_that_fails_is_the_exit_status(tmp_path: Path) -> None:
    arguments = (
        "--slots",
        "fake:1",
        "--engine",
        "none",
        "--python",
        "/bin/false",
        "--report",
        str(tmp_path / "r.json"),
    )
    done = _gpu_check(*arguments)
    assert done.returncode == 1
    assert "fail     memory is freed: " in done.stdout


def test_the_devices_of_a_node_that_serves_are_left_alone_and_the_operator_is_warned(tmp_path: Path) -> None:
    holder = processes.launch(["/bin/sleep", "60"], log_path=tmp_path / "log", environment={OWNER_VARIABLE: "n1 x"})
    try:
        record = ZygoteRecord(
            placeholder_id=uuid4(),
            node="n1",
            fence=1,
            pid=holder.pid,
            start_ticks=holder.start_ticks,
            boot_id=processes.boot_id(),
            devices=("fake-0",),
        )
        ProcessRecords(tmp_path / "engines", "n1").write(record)
        # What the operator's own shell has in the variable is no claim.
        variables = {"HEARTH_DATA_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "fake-1"}
        done = _gpu_check("--slots", "fake:2", "--engine", "none", "--python", "/bin/false", **variables)
    finally:
        processes.kill_session(holder, timeout_seconds=5)
    left = f"left alone: fake-0 (process {holder.pid} of node n1 has it, for its placeholder)"
    assert f"pass     free devices: 1 free, {left}.\n" in done.stdout
    assert "Cordon the node first (celery -A hearth fleet cordon NODE)" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_the_engine_too_and_keeps_what_was_found(number: signal.Signals, tmp_path: Path) -> None:
    report, mark = tmp_path / "report.json", str(uuid4())
    arguments = ["--slots", "fake:1", "--engine", "simulated", "--engine-args", "--startup-seconds 60"]
    line = [str(Path(sys.executable).with_name("hearth")), "gpu-check", *arguments, "--report", str(report)]
    environment = os.environ | {"HF_TEST_MARK": mark}  # an engine inherits variables of the hub
    with subprocess.Popen([*line, "--python", "/bin/false"], env=environment, stdout=subprocess.DEVNULL) as check:
        try:
            while not _engines(mark):
                assert check.poll() is None
                time.sleep(0.05)
        finally:
            check.send_signal(number)
        assert check.wait(30) == 128 + number
    assert _engines(mark) == []
    found = [each["check"] for each in json.loads(report.read_text())["checks"]]
    assert found == ["devices", "free devices", "memory is freed", "PyTorch zygote"]


@pytest.mark.long
def test_a_report_that_cannot_be_written_is_said_before_the_first_check(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _gpu_check("--slots", "fake:1", "--engine", "none", "--report", str(tmp_path / "file" / "report.json"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "The report cannot be written: " in done.stderr


def test_less_memory_than_a_driver_uses_on_its_own_shows_nothing_and_is_refused() -> None:
    done = _gpu_check("--slots", "fake:1", "--engine", "none", "--hold-gib", "0.5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--hold-gib" in done.stderr


@pytest.mark.parametrize(
    ("build", "kind", "refusal"),
    [
        (EngineKind.VLLM, "GPU", ""),
        (EngineKind.VLLM, "fake device", "The installed vLLM needs GPUs"),
        (EngineKind.VLLM, "share of a CPU", "The installed vLLM needs GPUs"),
        (EngineKind.VLLM_CPU, "GPU", "The installed vLLM runs on CPUs only"),
        (EngineKind.VLLM_CPU, "fake device", ""),
        (EngineKind.VLLM_CPU, "share of a CPU", ""),
    ],
)
def test_vllm_is_started_only_on_devices_that_it_is_built_for(build: EngineKind, kind: Kind, refusal: str) -> None:
    found = mismatch(build, kind)
    assert found.startswith(refusal) and bool(found) is bool(refusal)


def _engines(mark: str) -> list[ProcessIdentity]:
    marked = processes.find_by_environment("HF_TEST_MARK")
    return [
        each for each, value in marked.items() if value == mark and "workers.simulated" in processes.command_of(each)
    ]


def test_slots_that_are_none_are_refused() -> None:
    done = _gpu_check("--slots", "many")
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected auto, UUIDs of GPUs, a number of CPU shares, or fake:N" in done.stderr

"""`hearth gpu-check`, as an operator runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def _gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("hearth")), "gpu-check", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))


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


def test_slots_that_are_none_are_refused() -> None:
    done = _gpu_check("--slots", "many")
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected auto, a number of CPU shares, or fake:N" in done.stderr

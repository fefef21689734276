"""Every command of `hearth` begins in a process that has loaded nothing else: none needs what another one loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hearth.cli import fresh_commands


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_command_begins_in_a_process_of_its_own(tmp_path: Path) -> None:
    nowhere = {
        "DATABASE_URL": "postgresql://hearth_app@127.0.0.1:1/hearth",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "HEARTH_DATA_DIR": str(tmp_path / "data"),
    }
    done = subprocess.run(
        [sys.executable, fresh_commands.__file__],
        env=os.environ | nowhere,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["ran"] > 100

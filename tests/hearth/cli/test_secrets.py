"""`hearth secrets create`, for an instance whose secrets are kept somewhere else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from hearth import secrets

HEARTH = str(Path(sys.executable).with_name("hearth"))


def run(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"HEARTH_DATA_DIR": str(data_dir)}
    command = [HEARTH, "secrets", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_secrets_are_made_once_and_exported_without_an_instance(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert run(folder, "create").returncode == 0
    made = secrets.load(folder)
    assert stat.S_IMODE(secrets.path_in(folder).stat().st_mode) == 0o600
    everything = json.loads(run(folder, "export", "-", "--all").stdout)
    assert everything["admin_password"] == made.admin_password
    again = run(folder, "create")
    assert again.returncode == 1
    assert "exists already. Nothing was changed" in again.stderr
    assert secrets.load(folder) == made

"""The data directory of an instance."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.instance.roles import UMASK
from tests.hearth.instances import unstarted
from tests.ports import INSTANCE_PORTS, free_ports


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(UMASK)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_a_new_data_directory_of_root_lets_its_other_users_pass(tmp_path: Path) -> None:
    instance = unstarted(tmp_path / "new" / "data", free_ports(INSTANCE_PORTS))
    instance.make_folders()
    passable = 0o711 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(instance.data_dir.stat().st_mode) == passable
    assert stat.S_IMODE(instance.data_dir.parent.stat().st_mode) == passable
    assert stat.S_IMODE(instance.logs_dir.stat().st_mode) == 0o700


def test_a_data_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    unstarted(tmp_path, free_ports(INSTANCE_PORTS)).make_folders()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750

"""What `hearth up` says before it starts anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hearth.checks import preflight
from hearth.instance.instance import Instance
from tests.hearth.instances import unstarted
from tests.ports import INSTANCE_PORTS, free_ports


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return unstarted(tmp_path / "data", port=free_ports(INSTANCE_PORTS))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that, like a gateway's, lets others share its port; the ports around it are free."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", free_ports(INSTANCE_PORTS) + 2))
        server.listen()
        yield server


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 12, 9)])
def test_supported_pythons_pass(version: tuple[int, ...]) -> None:
    preflight.check_python(version)


@pytest.mark.parametrize(("version", "fault"), [((3, 10), "3.10 is too old"), ((3, 13), "3.13 is too new")])
def test_another_python_is_named_with_the_way_out(version: tuple[int, ...], fault: str) -> None:
    with pytest.raises(preflight.PreflightError, match=fault) as caught:
        preflight.check_python(version)
    assert "python3.12" in caught.value.remedy


def test_a_taken_port_names_its_holder_and_a_free_one(instance: Instance, listener: socket.socket) -> None:
    taken = replace(instance, port=listener.getsockname()[1])
    with pytest.raises(preflight.PreflightError, match=f"taken by process {os.getpid()} ") as caught:
        preflight.check_ports(taken)
    assert "gateway" in caught.value.problem
    assert "HEARTH_PORT=" in caught.value.remedy


def test_the_portals_port_is_looked_at_too(instance: Instance, listener: socket.socket) -> None:
    with pytest.raises(preflight.PreflightError, match="portal"):
        preflight.check_ports(replace(instance, port=listener.getsockname()[1] - 1))


def test_a_port_that_a_connection_has_names_its_holder(instance: Instance, listener: socket.socket) -> None:
    with (
        socket.create_connection(listener.getsockname(), source_address=("127.0.0.1", instance.port)),
        pytest.raises(preflight.PreflightError, match=f"taken by process {os.getpid()} "),
    ):
        preflight.check_ports(instance)


def test_connections_that_a_former_server_closed_do_not_hold_its_port(instance: Instance) -> None:
    """The side that closes first keeps the port in TIME_WAIT for a minute."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", instance.port))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            served, _ = server.accept()
            served.close()
            client.recv(1)
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", instance.port))
    preflight.check_ports(instance)


def test_an_address_of_another_machine_is_named(instance: Instance) -> None:
    with pytest.raises(preflight.PreflightError, match=r"HEARTH_HOST=192\.0\.2\.1"):
        preflight.check_ports(replace(instance, host="192.0.2.1"))


def test_a_port_of_the_vitals_is_named_with_its_role_and_setting(instance: Instance, listener: socket.socket) -> None:
    taken = listener.getsockname()[1]
    with pytest.raises(preflight.PreflightError, match=f"taken by process {os.getpid()} ") as caught:
        preflight.check_ports(replace(instance, port=taken + 6, metrics_port=taken - 2))
    assert f"Port {taken}, which the metrics listener of role drain needs" in caught.value.problem
    assert "HEARTH_METRICS_PORT=" in caught.value.remedy


@pytest.mark.parametrize(("port", "metrics_port"), [(18731, 65530), (18731, 18732), (18731, 18725)])
def test_vitals_that_do_not_fit_are_named(instance: Instance, port: int, metrics_port: int) -> None:
    with pytest.raises(preflight.PreflightError, match=f"HEARTH_METRICS_PORT={metrics_port} "):
        preflight.check_ports(replace(instance, port=port, metrics_port=metrics_port))


def test_the_vitals_address_of_another_machine_is_named(instance: Instance) -> None:
    first = free_ports(INSTANCE_PORTS)
    elsewhere = replace(instance, port=first, metrics_port=first + 2, metrics_host="192.0.2.1")
    with pytest.raises(preflight.PreflightError, match=r"HEARTH_METRICS_HOST=192\.0\.2\.1"):
        preflight.check_ports(elsewhere)


def test_the_last_port_leaves_none_for_the_portal(instance: Instance) -> None:
    with pytest.raises(preflight.PreflightError, match="leaves no port"):
        preflight.check_ports(replace(instance, port=65535))


def test_the_folders_are_private(instance: Instance) -> None:
    preflight.check(instance)
    assert sorted(path.name for path in instance.data_dir.iterdir()) == ["beat", "engines", "logs", "run", "wal"]
    assert {path.stat().st_mode & 0o777 for path in instance.data_dir.iterdir()} == {0o700}


def test_a_data_directory_that_cannot_be_written_is_named(instance: Instance, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(preflight.PreflightError, match="cannot be written") as caught:
        preflight.check_folders(replace(instance, data_dir=tmp_path / "file" / "data"))
    assert "HEARTH_DATA_DIR" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_what_the_engines_user_cannot_read_is_named(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preflight.check_folders(instance)
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HEARTH_ENGINE_USER", "nobody")
    with pytest.raises(preflight.PreflightError, match="run as nobody, which cannot read /") as caught:
        preflight.check_engine_account(instance)
    assert "HEARTH_ENGINE_USER=root" in caught.value.remedy
    monkeypatch.setenv("HEARTH_ENGINE_USER", "root")
    assert not preflight.check_engine_account(instance).own


def test_a_user_of_engines_that_is_not_there_is_named_with_the_command_that_makes_it(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_USER", "hearth-nowhere")
    with pytest.raises(preflight.PreflightError, match="There is no user hearth-nowhere") as caught:
        preflight.check_engine_account(instance)
    assert "useradd --system" in caught.value.remedy


def test_a_disk_with_too_little_space_is_named(instance: Instance) -> None:
    with pytest.raises(preflight.PreflightError, match="Only 12 MiB are free"):
        preflight.check_disk(instance, free_mib=12)
    preflight.check_disk(instance, free_mib=preflight.NEEDED_FREE_MIB)


def test_the_command_prints_one_line_and_starts_nothing(tmp_path: Path, listener: socket.socket) -> None:
    environment = os.environ | {
        "HEARTH_DATA_DIR": str(tmp_path / "data"),
        "HEARTH_PORT": str(listener.getsockname()[1]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "hearth.cli", "up"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("hearth: Port ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data" / "postgres").exists()


def test_a_bad_setting_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"HEARTH_DATA_DIR": str(tmp_path), "HEARTH_WAL_SYNC": "steam"}
    done = subprocess.run(
        [sys.executable, "-m", "hearth.cli", "up"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "hearth: HEARTH_WAL_SYNC is 'steam', expected 'group' or 'always'.\n"

"""The processes of a role, and their ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hearth.checks import preflight
from hearth.instance import health_ports, roles
from hearth.instance.instance import Instance
from tests.hearth.instances import unstarted
from tests.ports import INSTANCE_PORTS, free_ports


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return unstarted(tmp_path, port=free_ports(INSTANCE_PORTS + 2))


def test_further_gateways_share_the_port_of_the_first_and_have_vitals_of_their_own(instance: Instance) -> None:
    three = replace(instance, gateway_processes=3)
    found = [(name, place) for role in roles.ROLES for name, place in roles.processes(role, three)]
    assert [name for name, _ in found if name.startswith("gateway")] == ["gateway", "gateway-2", "gateway-3"]
    assert len(found) == len(roles.ROLES) + 2
    own = {name: int(place.environment("gateway")["HEARTH_METRICS_PORT"]) for name, place in found if "gateway" in name}
    assert own == {
        "gateway": three.metrics_port,
        "gateway-2": three.metrics_port + 8,
        "gateway-3": three.metrics_port + 9,
    }
    assert {place.port for _, place in found} == {instance.port}
    assert health_ports.url_of(three, "gateway-3") == f"http://127.0.0.1:{three.metrics_port + 9}"


def test_the_port_of_a_further_gateways_vitals_is_looked_at(instance: Instance) -> None:
    two = replace(instance, gateway_processes=2)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", health_ports.port_of(two, "gateway-2")))
        listener.listen()
        preflight.check_ports(instance)
        with pytest.raises(preflight.PreflightError, match="gateway-2"):
            preflight.check_ports(two)


def test_the_portals_server_logs_json_when_asked(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--log-config" not in roles.BY_NAME["portal"].command(instance)
    monkeypatch.setenv("HEARTH_LOG_FORMAT", "json")
    *server, _ = roles.BY_NAME["portal"].command(instance)
    server.remove("--respawn-failed-workers")
    environment = os.environ | {"HEARTH_ROLE": "portal", "HEARTH_NODE": "n7"}
    ended = subprocess.run(
        [*server, "json:nothing"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    found = json.loads(ended.stderr.strip().splitlines()[-1])
    assert (found["level"], found["logger"], found["role"], found["node"]) == ("ERROR", "_granian", "portal", "n7")

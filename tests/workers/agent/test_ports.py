"""On which ports engines listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from hearth import environment
from hearth.environment import BadSetting
from tests.ports import free_ports
from workers.agent.processes.paths import free_port

ADDRESS = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a socket that has the port."""
    taken = socket.socket()
    taken.bind((ADDRESS, port))
    taken.listen()
    return taken


def test_a_port_is_one_of_the_range_that_nobody_has() -> None:
    first = free_ports(1)
    said = rf"every port from {first} to {first} \(HEARTH_ENGINE_PORTS\) is in use"
    with listen(first), pytest.raises(OSError, match=said):
        free_port(ADDRESS, range(first, first + 1))
    assert free_port(ADDRESS, range(first, first + 1)) == first


def test_those_in_use_are_passed_over() -> None:
    first = free_ports(4)
    ports = range(first, first + 4)
    with ExitStack() as taken:
        for _ in ports:
            taken.enter_context(listen(free_port(ADDRESS, ports)))
        with pytest.raises(OSError, match="is in use"):
            free_port(ADDRESS, ports)


def test_without_a_range_any_free_port_serves() -> None:
    assert free_port(ADDRESS) >= 1024


def test_the_range_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_PORTS", "20000-20999")
    assert environment.read().engine_ports == range(20000, 21000)
    monkeypatch.delenv("HEARTH_ENGINE_PORTS")
    assert environment.read().engine_ports is None


@pytest.mark.parametrize("text", ["20000", "20999-20000", "80-90", "20000-70000", "a-b", "-"])
def test_what_is_no_range_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HEARTH_ENGINE_PORTS", text)
    with pytest.raises(BadSetting, match="two ports from 1024 to 65535"):
        environment.read()

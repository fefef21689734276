"""The embedded Redis: a real process, in a folder of its own."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from hearth.cli import status
from hearth.embedded.errors import DiskFull, ServerFailed, from_output
from hearth.embedded.redis import RedisServer
from hearth.instance.instance import from_environment
from hearth.paths import sockets_dir
from hearth.process_records import wait_until_gone


@pytest.fixture
def server(instance_dir: Path) -> Iterator[RedisServer]:
    found = RedisServer(
        data_dir=instance_dir / "redis", sockets_dir=sockets_dir(instance_dir), log_path=instance_dir / "redis.log"
    )
    yield found
    found.stop()


def test_it_keeps_what_it_holds_over_a_restart(server: RedisServer) -> None:
    with redis.Redis.from_url(server.start()) as client:
        client.set("answer", "42")
    server.stop()
    with redis.Redis.from_url(server.start()) as client:
        assert client.get("answer") == b"42"


def test_it_starts_again_after_kill_minus_nine(server: RedisServer) -> None:
    server.start()
    first = server.process()
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    assert wait_until_gone(first, timeout_seconds=5)
    server.start()
    assert server.process() not in {None, first}


def test_a_second_start_adopts_the_running_server(server: RedisServer) -> None:
    server.start()
    first = server.process()
    server.start()
    assert first is not None
    assert server.process() == first


def test_one_that_is_suspended_is_told_as_silent(instance_dir: Path, server: RedisServer) -> None:
    instance = replace(from_environment(), data_dir=instance_dir, redis_url="")

    def told() -> str:
        return next(each.state for each in status.read(instance).servers if each.name == "redis")

    assert told() == "stopped"
    server.start()
    process = server.process()
    assert process is not None
    assert told() == "running"
    os.kill(process.pid, signal.SIGSTOP)
    assert told() == "silent"
    os.kill(process.pid, signal.SIGCONT)
    assert told() == "running"


def test_it_never_evicts_and_listens_on_its_socket_only(server: RedisServer) -> None:
    with redis.Redis.from_url(server.start()) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("port") == {"port": "0"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert stat.S_IMODE((server.sockets_dir / "redis.sock").stat().st_mode) == 0o700


def test_a_server_that_cannot_start_says_why(server: RedisServer) -> None:
    server.start()
    server.stop()
    (server.data_dir / "appendonly.aof").write_bytes(b"*3\r\n$3\r\nNOT REDIS")
    with pytest.raises(ServerFailed, match="Bad file format"):
        server.start()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    error = from_output("Redis", "starting", "write: No space left on device", log_path=tmp_path / "logs" / "redis.log")
    assert isinstance(error, DiskFull)
    assert str(tmp_path) in error.problem

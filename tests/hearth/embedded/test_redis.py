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

from hearth.cli.output import status
from hearth.embedded.errors import BinaryMissing, DiskFull, ServerFailed, from_output
from hearth.embedded.redis import RedisServer, installed
from hearth.instance.instance import from_environment
from hearth.paths import sockets_dir
from hearth.process_records import wait_until_gone

NOWHERE = "/nonexistent"
WHEEL = pytest.param(NOWHERE, id="wheel")
SYSTEM = pytest.param(
    None, id="system", marks=pytest.mark.skipif(installed() is None, reason="no redis-server 7 or valkey-server here")
)


@pytest.fixture(params=[WHEEL, SYSTEM])
def server(instance_dir: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of the wheel, and the one that the system has."""
    found = RedisServer(
        data_dir=instance_dir / "redis",
        sockets_dir=sockets_dir(instance_dir),
        log_path=instance_dir / "redis.log",
        search_path=request.param,
    )
    yield found
    found.stop()


def pretend(folder: Path, name: str, said: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{said}'\n")
    (folder / name).chmod(0o755)


def test_the_systems_server_is_taken_from_version_seven_on(tmp_path: Path) -> None:
    assert installed(str(tmp_path)) is None
    pretend(tmp_path, "redis-server", "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64")
    assert installed(str(tmp_path)) is None
    pretend(tmp_path, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=libc bits=64")
    found = installed(str(tmp_path))
    assert str(found) == f"valkey-server 8.0.1, {tmp_path / 'valkey-server'}"


def test_an_activated_environment_does_not_hide_the_systems_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, system = tmp_path / "venv", tmp_path / "system"
    pretend(wheel, "redis-server", "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64")
    pretend(system, "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=libc bits=64")
    monkeypatch.setattr("hearth.embedded.redis.SYSTEM_FOLDER", NOWHERE)
    monkeypatch.setenv("PATH", f"{wheel}:{system}")
    assert str(installed()) == f"redis-server 7.0.15, {system / 'redis-server'}"
    monkeypatch.setenv("PATH", str(wheel))
    assert installed() is None
    monkeypatch.setattr("hearth.embedded.redis.SYSTEM_FOLDER", str(system))
    assert str(installed()) == f"redis-server 7.0.15, {system / 'redis-server'}"


def test_status_says_which_program_runs(server: RedisServer) -> None:
    assert server.running_program() is None
    with redis.Redis.from_url(server.start()) as client:
        version = client.info("server")["redis_version"]
    found = server.running_program()
    assert found is not None
    assert found.version == version


def test_data_of_a_newer_server_is_not_taken_for_none(server: RedisServer) -> None:
    server = replace(server, search_path=NOWHERE)
    (server.data_dir / "appendonlydir").mkdir(parents=True)
    with pytest.raises(BinaryMissing, match="no longer installed") as refused:
        server.start()
    assert refused.value.problem.endswith("no longer installed.")


def test_what_needs_more_memory_than_it_may_take_is_refused_and_nothing_evicted(server: RedisServer) -> None:
    with redis.Redis.from_url(server.start()) as client:
        assert int(client.config_get("maxmemory")["maxmemory"]) > 0
        client.set("limit", "5", ex=600)
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", "x")
        assert client.get("limit") == b"5"


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
    for file in [*server.data_dir.glob("appendonly.aof"), *server.data_dir.glob("appendonlydir/*.incr.aof")]:
        file.write_bytes(b"*3\r\n$3\r\nNOT REDIS")
    with pytest.raises(ServerFailed, match="Bad file format"):
        server.start()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    error = from_output("Redis", "starting", "write: No space left on device", log_path=tmp_path / "logs" / "redis.log")
    assert isinstance(error, DiskFull)
    assert str(tmp_path) in error.problem

"""The KV relay of a node: follows every engine there and sends its followers which blocks are cached where.

A process in a session of its own, so that routers keep their view when an agent or a gateway ends. It finds the engines
by the records of the agent, and ends by itself when neither an agent nor an engine is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import zmq.asyncio

from workers import processes
from workers.kv_relay.addresses import engine_address, relay_socket
from workers.kv_relay.block_set import Change
from workers.kv_relay.event_source import EventSource
from workers.kv_relay.messages import COUNT, FOLLOW, Delta, Gone, Message, Snapshot, frame

log = logging.getLogger(__name__)

SCAN_SECONDS = 0.25
#: A follower with a larger backlog is disconnected; it reconnects for a snapshot, which is smaller.
MAX_BACKLOG_BYTES = 64 << 20

_Process = tuple[UUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPaths:
    """The node of a relay, and its files: the engine records, the folder of sockets, and the agent's lock."""

    node: str
    registry: Path
    sockets: Path
    agent_lock: Path


@dataclass(frozen=True, slots=True)
class _Followed:
    source: EventSource
    task: asyncio.Task[None]


class Relay:
    """Follows engines and serves followers, on one event loop."""

    def __init__(self, paths: RelayPaths) -> None:
        self._paths = paths
        self._context = zmq.asyncio.Context()
        self._engines: dict[_Process, _Followed] = {}
        self._followers: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Serve until neither an agent nor an engine is left."""
        path = relay_socket(self._paths.sockets, self._paths.node)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, str(path))
        path.chmod(0o600)
        try:
            while self._follow_registered() or _is_locked(self._paths.agent_lock):  # noqa: ASYNC110 - a folder and a lock must be polled
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            server.close()
            for followed in self._engines.values():
                followed.task.cancel()
            await asyncio.gather(*(each.task for each in self._engines.values()), return_exceptions=True)
            for writer in self._followers:
                writer.close()
            path.unlink(missing_ok=True)
            self._context.destroy(linger=0)

    def _follow_registered(self) -> bool:
        """Follow exactly the engines that have a record; return whether there are any."""
        registered = set(_registered(self._paths.registry, self._paths.node))
        for process in registered - self._engines.keys():
            self._follow(process)
        for process in self._engines.keys() - registered:
            self._engines.pop(process).task.cancel()
            self._send(Gone(str(process[0]), process[1]))
        return bool(registered)

    def _follow(self, process: _Process) -> None:
        replica_id, generation = process

        def send_change(change: Change) -> None:
            self._send(
                Delta(str(replica_id), generation, source.sequence, change.cleared, [*change.stored], [*change.removed])
            )

        source = EventSource(self._context, engine_address(self._paths.sockets, replica_id, generation), send_change)
        task = asyncio.get_running_loop().create_task(source.run())
        self._engines[process] = _Followed(source, task)
        self._send(Snapshot(str(replica_id), generation, 0, []))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            command = await reader.readline()
            if command == COUNT:
                writer.write(json.dumps(self._counts()).encode())
            if command != FOLLOW:
                return
            for (replica_id, generation), followed in self._engines.items():
                blocks = [*followed.source.blocks.hashes()]
                writer.write(frame(Snapshot(str(replica_id), generation, followed.source.sequence, blocks)))
            self._followers.add(writer)  # without an await in between, so that no change is sent twice or missed
            await reader.read()
        except (OSError, ValueError):
            log.info("a follower disconnected")
        finally:
            self._followers.discard(writer)
            writer.close()

    def _counts(self) -> dict[str, int]:
        return {str(replica): len(followed.source.blocks) for (replica, _), followed in self._engines.items()}

    def _send(self, message: Message) -> None:
        data = frame(message)
        for writer in tuple(self._followers):
            if writer.transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
                self._followers.discard(writer)
                writer.transport.abort()
            else:
                writer.write(data)


def serve(paths: RelayPaths) -> bool:
    """Run the node's relay in this process until it is not needed; False at once if the node has one already."""
    paths.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(lock_path(paths), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    asyncio.run(Relay(paths).run())
    return True


def is_serving(paths: RelayPaths) -> bool:
    """Return whether the node's relay runs: the kernel releases its lock when the process ends, however it ends."""
    return _is_locked(lock_path(paths))


def lock_path(paths: RelayPaths) -> Path:
    """Return the file that the relay keeps locked."""
    return paths.sockets / f"relay-{paths.node[:40]}.lock"


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _registered(folder: Path, node: str) -> list[_Process]:
    """Return the engines in the agent's records whose processes live.

    A file that is being replaced is found in the next scan.
    """
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text())
            if record["node"] == node and record["kind"] == "engine" and _lives(record):
                found.append((UUID(record["replica_id"]), int(record["generation"])))
    return found


def _lives(record: dict[str, Any]) -> bool:
    process = processes.ProcessIdentity(pid=record["pid"], start_ticks=record["start_ticks"])
    return bool(record["boot_id"] == processes.boot_id()) and processes.is_running(process)

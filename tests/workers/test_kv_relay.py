"""The KV relay as a separate process: it finds engines, sends to followers, and ends when it is not needed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import aiohttp
import msgspec
import pytest

from tenants.ids import ReplicaId
from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, Client, Replica, running
from workers import processes
from workers.agent.processes.process_records import EngineRecord, ProcessRecords
from workers.kv_relay.addresses import engine_address, relay_socket
from workers.kv_relay.block_set import BlockSet
from workers.kv_relay.messages import Delta, Gone, Message, Snapshot, count, follow
from workers.kv_relay.relay import RelayPaths, is_serving

NODE = "n1"
PROMPT = list(range(300, 400))


@dataclass
class World:
    """The folders of a relay, an engine there, and the files that an agent would keep."""

    place: RelayPaths
    replica_id: UUID
    replica: Replica

    def register(self, generation: int = 1) -> Path:
        """Write the engine's record as the agent does."""
        process = processes.identify(self.replica.process.pid)
        assert process is not None
        record = EngineRecord(
            replica_id=cast(ReplicaId, self.replica_id),
            node=NODE,
            fence=1,
            generation=generation,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=processes.boot_id(),
            port=self.replica.spec.port,
            devices=(),
            begun_at=0.0,
        )
        ProcessRecords(self.place.registry, NODE).write(record)
        return self.place.registry / f"{self.replica_id}.json"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the node's relay."""
        options = ["--node", NODE, "--registry", self.place.registry, "--sockets", self.place.sockets]
        options += ["--agent-lock", self.place.agent_lock]
        return subprocess.Popen([sys.executable, "-m", "workers.kv_relay", *map(str, options)], start_new_session=True)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="relay-") as name:
        folder, replica_id = Path(name), uuid4()
        for each in ("engines", "sockets"):
            (folder / each).mkdir(mode=0o700)
        place = RelayPaths(
            node=NODE, registry=folder / "engines", sockets=folder / "sockets", agent_lock=folder / "agent.lock"
        )
        address = engine_address(place.sockets, replica_id, 1)
        with running("simulated", kv_events_endpoint=address.events, kv_replay_endpoint=address.replay) as replica:
            yield World(place, replica_id, replica)


@contextlib.contextmanager
def relay(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """Run the relay while the block lasts."""
    process = world.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def told(world: World) -> AsyncIterator[Message]:
    """Follow the relay as soon as it serves."""
    await until(lambda: answers(relay_socket(world.place.sockets, NODE)))
    async for message in follow(relay_socket(world.place.sockets, NODE)):
        yield message


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(30):
        while True:
            if holds():
                return
            await asyncio.sleep(0.05)


def answers(path: Path) -> bool:
    """Return whether a process listens on the socket; a killed one leaves its file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def ask(world: World, salt: str) -> set[bytes]:
    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
        assert (await Client(world.replica, session).post("/v1/completions", body)).status == 200
    return set(chain(PROMPT, BLOCK_TOKENS, salt=salt))


async def until_known(messages: AsyncIterator[Message], wanted: set[bytes]) -> set[bytes]:
    """Apply messages until the blocks are there, and return all blocks."""
    known: set[bytes] = set()
    async with asyncio.timeout(30):
        async for message in messages:
            if isinstance(message, Snapshot):
                known = set(message.hashes)
            elif isinstance(message, Delta):
                known = (set() if message.cleared else known - set(message.removed)) | set(message.stored)
            if wanted <= known:
                break
    assert wanted <= known
    return known


async def test_a_follower_gets_a_snapshot_and_then_what_changes(world: World) -> None:
    world.register()
    with relay(world):
        before = await ask(world, "a")
        messages = told(world)
        await until_known(messages, before)
        after = await ask(world, "b")
        await until_known(messages, after)
        late = told(world)
        assert await until_known(late, before | after) == before | after


async def test_a_relay_that_was_killed_is_replaced_and_nothing_is_forgotten(world: World) -> None:
    world.register()
    with relay(world) as first:
        before = await ask(world, "a")
        await until_known(told(world), before)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        assert not is_serving(world.place)
    with relay(world):
        assert await until_known(told(world), before) == before


async def test_neither_prompts_nor_salts_are_told(world: World) -> None:
    world.register()
    with relay(world):
        blocks = await ask(world, "the-secret-salt")
        await until_known(told(world), blocks)
        reader, writer = await asyncio.open_unix_connection(str(relay_socket(world.place.sockets, NODE)))
        writer.write(b"follow\n")
        async with asyncio.timeout(10):
            length = int.from_bytes(await reader.readexactly(4), "big")
            raw = await reader.readexactly(length)
        writer.close()
        assert b"the-secret-salt" not in raw
        assert msgspec.msgpack.decode(raw)[:3] == ["snapshot", str(world.replica_id), 1]


async def test_an_engine_that_is_gone_is_told_and_the_relay_ends_with_the_last(world: World) -> None:
    record = world.register()
    with relay(world) as process:
        messages = told(world)
        await until_known(messages, await ask(world, "a"))
        record.unlink()
        async with asyncio.timeout(30):
            async for message in messages:
                if isinstance(message, Gone):
                    assert message == Gone(str(world.replica_id), 1)
                    break
        assert await asyncio.to_thread(process.wait, 30) == 0


async def test_a_record_whose_engine_is_dead_keeps_no_relay(world: World) -> None:
    world.register()
    with relay(world) as process:
        await until_known(told(world), await ask(world, "a"))
        os.killpg(world.replica.group, signal.SIGKILL)
        await asyncio.to_thread(world.replica.process.wait)
        assert await asyncio.to_thread(process.wait, 30) == 0


async def test_a_relay_stays_while_an_agent_runs_and_a_second_one_does_not_start(world: World) -> None:
    descriptor = os.open(world.place.agent_lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with relay(world) as process:
        await until(lambda: is_serving(world.place))
        second = world.start()
        assert await asyncio.to_thread(second.wait, 30) == 1
        assert process.poll() is None
        os.close(descriptor)
        assert await asyncio.to_thread(process.wait, 30) == 0


async def test_blocks_are_counted_per_replica(world: World) -> None:
    world.register()
    with relay(world):
        await until_known(told(world), await ask(world, "a"))
        path = relay_socket(world.place.sockets, NODE)
        assert await asyncio.to_thread(count, path, timeout_seconds=10) == {str(world.replica_id): 3}
        assert answers(path)
    with pytest.raises(OSError, match="refused"):
        count(path, timeout_seconds=1)


async def test_a_stranger_to_the_protocol_gets_nothing(world: World) -> None:
    world.register()
    with relay(world):
        blocks = await ask(world, "a")
        await until_known(told(world), blocks)
        reader, writer = await asyncio.open_unix_connection(str(relay_socket(world.place.sockets, NODE)))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


def batch(*events: dict[str, object]) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(*hashes: bytes, **more: object) -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": list(hashes), "token_ids": [1], "medium": "GPU", **more}


def removed(*hashes: bytes) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


def test_a_block_stored_twice_is_there_until_it_is_removed_twice() -> None:
    blocks = BlockSet()
    assert blocks.apply(batch(stored(b"a", b"b"), stored(b"a", group_idx=1))).stored == (b"a", b"b")
    assert not blocks.apply(batch(removed(b"a")))
    assert blocks.apply(batch(removed(b"a"))).removed == (b"a",)
    assert blocks.hashes() == (b"b",)


def test_what_forms_no_prefix_or_is_not_on_the_device_is_left_out() -> None:
    blocks = BlockSet()
    blocks.apply(batch(stored(b"a", kv_cache_spec_kind="sliding_window"), stored(b"b") | {"medium": "CPU"}))
    assert blocks.hashes() == ()


def test_clearing_drops_everything_before_it() -> None:
    blocks = BlockSet()
    blocks.apply(batch(stored(b"a")))
    change = blocks.apply(batch(stored(b"b"), {"type": "AllBlocksCleared"}, stored(b"c")))
    assert (change.cleared, change.stored, change.removed, blocks.hashes()) == (True, (b"c",), (), (b"c",))


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="MessagePack"):
        BlockSet().apply(b"\xc1")

"""Listens to one replica's KV events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.engines.replica import Replica

END_OF_REPLAY = (2**64 - 1).to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Batch:
    """One message: its number and its events."""

    topic: str
    number: int
    events: tuple[dict[str, Any], ...]


class Listener:
    """Receives all events from its creation on."""

    def __init__(self, replica: Replica, context: zmq.asyncio.Context) -> None:
        self._replica = replica
        self._context = context
        self._socket = context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(replica.events)

    async def connected(self) -> None:
        """Wait until the engine has accepted the connection, which takes longer on a busy one."""
        async with asyncio.timeout(30):
            await self._monitor.recv_multipart()

    async def until(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the next events of a kind, others skipped, once there are ``count`` hashes or clearings."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(15):
            while sum(len(event.get("block_hashes", [0])) for event in found) < count:
                batch = decode(await self._socket.recv_multipart())
                found.extend(event for event in batch.events if event["type"] == kind)
        return found

    async def through(self, event: Callable[[dict[str, Any]], bool]) -> list[Batch]:
        """Return the next messages up to the one with such an event. Those of earlier requests may come first."""
        heard: list[Batch] = []
        while not heard or not any(event(each) for each in heard[-1].events):
            heard.append(await self.batch())
        return heard

    async def batch(self) -> Batch:
        """Return the next message."""
        async with asyncio.timeout(15):
            return decode(await self._socket.recv_multipart())

    async def replay(self, first: int) -> list[Batch]:
        """Request the messages from number ``first`` on."""
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.connect(self._replica.replayed_events)
            await dealer.send_multipart((b"", first.to_bytes(8, "big")))
            batches: list[Batch] = []
            async with asyncio.timeout(15):
                while (frames := await dealer.recv_multipart())[2] != END_OF_REPLAY:
                    batches.append(decode(frames[1:]))
            assert frames == [b"", b"", END_OF_REPLAY, b""]
            return batches
        finally:
            dealer.close(linger=0)

    async def stored_under(self, salt: str) -> list[bytes]:
        """Return the hashes of the first prompt that was stored under a salt, however long ago."""
        async with asyncio.timeout(30):
            while True:
                for event in [event for batch in await self.replay(0) for event in batch.events]:
                    if event["type"] == "BlockStored" and event["extra_keys"][0] == [salt]:
                        return list(event["block_hashes"])
                await asyncio.sleep(0.1)

    def close(self) -> None:
        """Stop listening."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)


def decode(frames: list[bytes]) -> Batch:
    """Return the content of one message."""
    topic, number, payload = frames
    _timestamp, events, rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    return Batch(topic.decode(), int.from_bytes(number, "big"), tuple(events))


@contextlib.asynccontextmanager
async def listening(replica: Replica) -> AsyncIterator[Listener]:
    """Yield a listener whose subscription has reached the engine."""
    with zmq.asyncio.Context() as context:
        listener = Listener(replica, context)
        try:
            await listener.connected()
            # The subscription reaches the publisher asynchronously; messages sent before that are lost.
            await asyncio.sleep(0.3)
            yield listener
        finally:
            listener.close()

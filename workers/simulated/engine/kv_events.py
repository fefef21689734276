"""KV events over ZMQ as vLLM publishes them: a PUB socket, and a ROUTER that replays missed batches.

Wire format of vLLM 0.32 (distributed/kv_events.py): frames topic, sequence number as 8 bytes big-endian,
msgpack of ``[timestamp, [events], data-parallel rank]``, each event a map with its type in ``type``.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq
import zmq.asyncio

from workers.simulated.engine.block_pool import Cleared, Event, Removed, Stored

BUFFERED_BATCHES = 10_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class EventPublisher:
    """Binds the endpoints of one engine. ``integers`` sends the last eight bytes of a hash as a number."""

    def __init__(
        self, *, endpoint: str, replay_endpoint: str | None, topic: str, block_size: int, integers: bool
    ) -> None:
        self._context = zmq.Context()
        self._topic = topic.encode()
        self._block_size = block_size
        self._integers = integers
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED_BATCHES)
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set_hwm(100_000)
        self._publisher.bind(endpoint)
        self._replay_endpoint = replay_endpoint
        self._replaying: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving replays; call it inside the event loop."""
        if self._replay_endpoint is not None:
            self._replaying = asyncio.get_running_loop().create_task(self._serve_replays(self._replay_endpoint))

    async def close(self) -> None:
        """Send queued batches and close the sockets."""
        if self._replaying is not None:
            self._replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replaying
        self._publisher.close(linger=200)
        self._context.term()

    def publish(self, events: Sequence[Event]) -> None:
        """Send one batch without blocking."""
        batch = [time.time(), [self._as_map(event) for event in events], 0]
        payload = msgspec.msgpack.encode(batch)
        self._sent.append((self._sequence, payload))
        self._publisher.send_multipart((self._topic, self._sequence.to_bytes(8, "big"), payload))
        self._sequence += 1

    def _as_map(self, event: Event) -> dict[str, object]:
        match event:
            case Stored():
                lora = [] if event.adapter is None else [event.adapter.name]
                salted = [*lora, event.salt] if event.salt else lora
                extra = [salted or None, *[lora or None] * (len(event.hashes) - 1)]
                return {
                    "type": "BlockStored",
                    "block_hashes": [self._wire(key) for key in event.hashes],
                    "parent_block_hash": None if event.parent is None else self._wire(event.parent),
                    "token_ids": event.token_ids,
                    "block_size": self._block_size,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": event.adapter.name if event.adapter is not None else None,
                    "extra_keys": extra,
                    "group_idx": 0,
                    "kv_cache_spec_kind": "full_attention",
                }
            case Removed():
                hashes = [self._wire(event.hash)]
                return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
            case Cleared():
                return {"type": "AllBlocksCleared"}

    def _wire(self, key: bytes) -> bytes | int:
        return int.from_bytes(key[-8:], "big") if self._integers else key

    async def _serve_replays(self, endpoint: str) -> None:
        router = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        try:
            router.bind(endpoint)
            while True:
                frames = await router.recv_multipart()
                if len(frames) != 3:
                    continue
                client, empty, start = frames
                first = int.from_bytes(start, "big")
                for number, payload in list(self._sent):
                    if number >= first:
                        await router.send_multipart((client, empty, self._topic, number.to_bytes(8, "big"), payload))
                await router.send_multipart((client, empty, b"", END_OF_REPLAY, b""))
        finally:
            router.close(linger=0)

"""Follow the KV events of one engine process: live, with a replay of the batches that were missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from workers.kv_relay.addresses import EventAddress
from workers.kv_relay.block_set import BlockSet, Change

log = logging.getLogger(__name__)

#: The publisher answers between two polls of its queue, up to 100 ms apart.
REPLAY_TIMEOUT_SECONDS = 5.0
#: After this long without an event the next batches are requested: those published before the subscription reached the
#: engine, or while its queue was full, leave no visible gap.
QUIET_SECONDS = 2.0
_END = -1


class EventSource:
    """The blocks of one engine process. ``on_change`` is called with each change, in order, on the event loop."""

    def __init__(
        self, context: zmq.asyncio.Context, address: EventAddress, on_change: Callable[[Change], None]
    ) -> None:
        self.blocks = BlockSet()
        #: Number of the next batch.
        self.sequence = 0
        self._context = context
        self._address = address
        self._on_change = on_change

    async def run(self) -> None:
        """Follow until cancelled. The engine may not have bound its sockets yet: ZMQ keeps trying."""
        live = self._context.socket(zmq.SUB)
        live.set_hwm(100_000)
        try:
            live.connect(self._address.events)
            live.subscribe(b"")
            # First the batches from before the subscription; a process that has just started has none.
            await self._replay()
            while True:
                if not await live.poll(int(QUIET_SECONDS * 1000)):
                    await self._replay()
                    continue
                frames = await live.recv_multipart()
                if len(frames) == 3:
                    await self._take(int.from_bytes(frames[1], "big"), frames[2])
        finally:
            live.close(linger=0)

    async def _take(self, number: int, payload: bytes) -> None:
        """Apply a batch in its order; missing batches before it are requested first."""
        if number < self.sequence:
            return
        if number > self.sequence:
            await self._replay()
            if number < self.sequence:
                return
            if number > self.sequence:
                self._skip_to(number)
        self._apply(number, payload)

    async def _replay(self) -> None:
        """Request every batch from the next one on. If one is no longer available, the set is emptied."""
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.connect(self._address.replay)
            await dealer.send_multipart((b"", self.sequence.to_bytes(8, "big")))
            async with asyncio.timeout(REPLAY_TIMEOUT_SECONDS):
                while True:
                    frames = await dealer.recv_multipart()
                    number = int.from_bytes(frames[-2], "big", signed=True)
                    if number == _END:
                        return
                    if number > self.sequence:
                        self._skip_to(number)
                    if number == self.sequence:
                        self._apply(number, frames[-1])
        except TimeoutError:
            return  # not started yet, or too busy; the next gap requests a replay again
        finally:
            dealer.close(linger=0)

    def _skip_to(self, number: int) -> None:
        """Continue at ``number`` with an empty set: a block whose removal was missed must not count as cached."""
        log.warning("%s: batches %s to %s are lost", self._address.events, self.sequence, number - 1)
        self.sequence = number
        if len(self.blocks):
            self._on_change(self.blocks.clear())

    def _apply(self, number: int, payload: bytes) -> None:
        self.sequence = number + 1
        try:
            change = self.blocks.apply(payload)
        except ValueError as error:
            log.error("%s: batch %s cannot be read: %s", self._address.events, number, error)
            change = self.blocks.clear()
        if change:
            self._on_change(change)

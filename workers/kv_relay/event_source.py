"""Follow the KV events of one engine process: live, and what was missed by asking for it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from workers.kv_relay.addresses import EventAddress
from workers.kv_relay.block_set import BlockSet, Change

log = logging.getLogger(__name__)

#: The publisher answers between two looks at its queue, up to 100 ms apart.
REPLAY_TIMEOUT_SECONDS = 5.0
#: After so long without an event the engine is asked what comes next: what it published before our subscription
#: reached it, or while its queue was full, leaves no gap to be seen.
QUIET_SECONDS = 2.0
_END = -1


class EventSource:
    """The blocks of one engine process. ``told`` is called with each change, in order, on the event loop."""

    def __init__(self, context: zmq.asyncio.Context, address: EventAddress, told: Callable[[Change], None]) -> None:
        self.blocks = BlockSet()
        #: Number of the next batch.
        self.sequence = 0
        self._context = context
        self._address = address
        self._told = told

    async def run(self) -> None:
        """Follow until cancelled. The engine may not have bound its sockets yet: ZMQ keeps trying."""
        live = self._context.socket(zmq.SUB)
        live.set_hwm(100_000)
        try:
            live.connect(self._address.events)
            live.subscribe(b"")
            # First what was published before anybody listened; a process that has just started repeats nothing.
            await self._repeat()
            while True:
                if not await live.poll(int(QUIET_SECONDS * 1000)):
                    await self._repeat()
                    continue
                frames = await live.recv_multipart()
                if len(frames) == 3:
                    await self._take(int.from_bytes(frames[1], "big"), frames[2])
        finally:
            live.close(linger=0)

    async def _take(self, number: int, payload: bytes) -> None:
        """Apply a batch in its turn; what lies between is asked for first."""
        if number < self.sequence:
            return
        if number > self.sequence:
            await self._repeat()
            if number < self.sequence:
                return
            if number > self.sequence:
                self._forget(number)
        self._apply(number, payload)

    async def _repeat(self) -> None:
        """Ask for every batch from the next one on. What cannot be had any more empties the set."""
        asker = self._context.socket(zmq.DEALER)
        try:
            asker.connect(self._address.replay)
            await asker.send_multipart((b"", self.sequence.to_bytes(8, "big")))
            async with asyncio.timeout(REPLAY_TIMEOUT_SECONDS):
                while True:
                    frames = await asker.recv_multipart()
                    number = int.from_bytes(frames[-2], "big", signed=True)
                    if number == _END:
                        return
                    if number > self.sequence:
                        self._forget(number)
                    if number == self.sequence:
                        self._apply(number, frames[-1])
        except TimeoutError:
            return  # not up yet, or too busy; the next gap asks again
        finally:
            asker.close(linger=0)

    def _forget(self, number: int) -> None:
        """Go on at ``number`` with nothing: a block whose removal was missed must not be believed in."""
        log.warning("%s: batches %s to %s are lost", self._address.events, self.sequence, number - 1)
        self.sequence = number
        if len(self.blocks):
            self._told(self.blocks.clear())

    def _apply(self, number: int, payload: bytes) -> None:
        self.sequence = number + 1
        try:
            change = self.blocks.apply(payload)
        except ValueError as error:
            log.error("%s: batch %s cannot be read: %s", self._address.events, number, error)
            change = self.blocks.clear()
        if change:
            self._told(change)

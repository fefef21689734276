"""Memory with many idle streams: each has had its first event, and the engine is silent."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.lineup import Lineup
from benchmarks.gateway.load import NUMBER_MARK, SESSION_MARK, SILENT, Address, new_run, template
from benchmarks.gateway.plan import Plan

#: Streams that are being opened at the same time.
OPENING = 50
OPEN_SECONDS = 15.0
SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What one contender takes for its streams. ``opened``: those whose first event came in ``seconds``."""

    opened: int
    seconds: float
    memory_before_bytes: int
    memory_bytes: int

    @property
    def bytes_per_stream(self) -> float:
        return (self.memory_bytes - self.memory_before_bytes) / max(1, self.opened)


def measure(lineup: Lineup, plan: Plan) -> dict[str, Idle]:
    """Open the plan's streams at every contender, one contender after another, and return what each took, by name."""
    found: dict[str, Idle] = {}

    def take(contender: Contender, up: Up) -> None:
        if up.running:
            found[contender.name] = asyncio.run(_hold(up, plan.idle_streams))

    lineup.take_turns(f"{plan.idle_streams:,} idle streams", take)
    return found


async def _hold(up: Up, count: int) -> Idle:
    before = up.memory_bytes()
    began = time.monotonic()
    text = template(up.address, SILENT, new_run()).decode()
    turns = asyncio.Semaphore(OPENING)
    writers: list[asyncio.StreamWriter] = []
    opening = [asyncio.ensure_future(_open(up.address, text, number, turns, writers)) for number in range(count)]
    done, late = await asyncio.wait(opening, timeout=OPEN_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*opening, return_exceptions=True)
    seconds = time.monotonic() - began
    await asyncio.sleep(SETTLE_SECONDS)
    found = Idle(
        opened=sum(task.exception() is None and task.result() for task in done),
        seconds=seconds,
        memory_before_bytes=before,
        memory_bytes=up.memory_bytes(),
    )
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    await asyncio.sleep(SETTLE_SECONDS)
    return found


async def _open(
    address: Address, text: str, number: int, turns: asyncio.Semaphore, writers: list[asyncio.StreamWriter]
) -> bool:
    """Return True once the first event of a stream has come, False when something else did."""
    async with turns:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writers.append(writer)
        digits = f"{number:09d}"
        writer.write(text.replace(SESSION_MARK, digits).replace(NUMBER_MARK, digits).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            return False
        line = b""
        while not line.startswith(b"data: {"):
            line = await reader.readline()
            if not line:
                return False
        return True

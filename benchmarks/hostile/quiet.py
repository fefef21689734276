"""The quiet tenant: small chat requests at a steady rate, and how long each took from when it was due."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gateway.load import Address

#: Requests a second, on this many connections in turn.
RATE = 50
CONNECTIONS = 10
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the quiet tenant saw. Requests that failed, or took too long, have no time."""

    milliseconds: Sequence[float]
    failures: int

    def percentile(self, percent: float) -> float:
        """Return the time within which this part of the requests was answered; infinite if more failed."""
        ordered = sorted(self.milliseconds)
        rank = int(len(ordered) * percent / 100)
        return ordered[min(rank, len(ordered) - 1)] if ordered else float("inf")


async def ask(address: Address, seconds: float) -> Served:
    """Send requests for this time. A request is due when its turn comes, whether or not others are answered."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.2
    times: list[float] = []
    total = int(RATE * seconds)

    async def connection(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        for number in range(first, total, CONNECTIONS):
            due = begin + number / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    if await _exchange(reader, writer, address, number):
                        times.append((loop.time() - due) * 1000)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                writer.transport.abort()
                reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.close()

    await asyncio.gather(*(connection(first) for first in range(CONNECTIONS)), return_exceptions=True)
    return Served(milliseconds=times, failures=total - len(times))


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address, number: int) -> bool:
    """Send a request; return whether it was answered 200."""
    message = {"role": "user", "content": f"Question {number}"}
    body = json.dumps({"model": address.model, "messages": [message], "max_tokens": 16}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {address.api_key}\r\n"
    writer.write(head.encode() + b"content-length: %d\r\ncache-control: no-cache\r\n\r\n" % len(body) + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
    await reader.readexactly(int(length or 0))
    return answer.startswith(b"HTTP/1.1 200 ")

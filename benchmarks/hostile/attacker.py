"""One hostile client: ``python -m benchmarks.hostile.attacker KIND PORT CONNECTIONS SECONDS``; the key is in KEY.

Prints a line of JSON: how many of its requests got which status; 0 counts connections that got none. It gives way to
other processes, because in production it would run on another machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import uvloop

from benchmarks.gateway.upstream import MODEL
from hearth.instance import file_limits

CHAT = b"/v1/chat/completions"
#: Of a body; at most 10 MiB are allowed.
LARGE_BYTES = 10_000_000
NICENESS = 10
#: Heads that are sent at once on one connection.
PIPELINED = 16

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attack = Callable[["Attacker"], Awaitable[None]]


class Attacker:
    """All connections of one attack. Each repeats it until the time is over."""

    def __init__(self, port: int, key: str) -> None:
        self.key = key
        self.statuses: Counter[int] = Counter()
        self.many_keys = _body(metadata={f"k{number:07d}": 1 for number in range(LARGE_BYTES // 16)})
        self._port = port

    async def run(self, attack: Attack, connections: int, seconds: float) -> None:
        """Attack for this time."""
        work = [asyncio.create_task(self._repeat(attack)) for _ in range(connections)]
        await asyncio.sleep(seconds)
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def connect(self) -> Connection:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def status(self, reader: asyncio.StreamReader) -> int:
        """Read one response and count its status."""
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        self.statuses[status] += 1
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length or 0))
        return status

    def head(self, length: int, *more: str, key: str = "", path: bytes = CHAT) -> bytes:
        """Return the head of a request with a body."""
        lines = [f"authorization: Bearer {key or self.key}", f"content-length: {length}", "host: x", *more]
        return b"POST " + path + b" HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def _repeat(self, attack: Attack) -> None:
        while True:
            try:
                await attack(self)
            except (OSError, asyncio.IncompleteReadError):
                self.statuses[0] += 1
                await asyncio.sleep(0.01)


async def large(attacker: Attacker) -> None:
    """Send a body of 10 MB with 600,000 keys, and go on once it is answered."""
    reader, writer = await attacker.connect()
    try:
        writer.write(attacker.head(len(attacker.many_keys)))
        writer.write(attacker.many_keys)
        await attacker.status(reader)
    finally:
        writer.transport.abort()


async def deferred(attacker: Attacker) -> None:
    """Send small deferred requests on one connection."""
    reader, writer = await attacker.connect()
    try:
        while True:
            body = _body(seed=attacker.statuses.total())
            writer.write(attacker.head(len(body), "prefer: respond-async") + body)
            await attacker.status(reader)
    finally:
        writer.transport.abort()


async def idle(attacker: Attacker) -> None:
    """Send nothing."""
    await _stay(attacker, b"")


async def slow_head(attacker: Attacker) -> None:
    """Begin a head."""
    await _stay(attacker, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")


async def slow_body(attacker: Attacker) -> None:
    """Announce a body, and send the first byte of it."""
    await _stay(attacker, attacker.head(1000) + b"{")


async def unknown_keys(attacker: Attacker) -> None:
    """Send requests with a well-formed key that does not exist."""
    from tenants.keys import key_format

    body = _body()
    await _stay(attacker, attacker.head(len(body), key=key_format.generate("hk").text()) + body)


async def pipelined(attacker: Attacker) -> None:
    """Send many requests at once."""
    body = _body()
    await _stay(attacker, (attacker.head(len(body)) + body) * PIPELINED)


async def sign_in(attacker: Attacker) -> None:
    """Try to sign in to the portal."""
    reader, writer = await attacker.connect()
    try:
        form = b"username=admin&password=guess"
        writer.write(
            attacker.head(len(form), "content-type: application/x-www-form-urlencoded", path=b"/portal/login/")
        )
        writer.write(form)
        await attacker.status(reader)
    finally:
        writer.transport.abort()


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (large, deferred, idle, slow_head, slow_body, unknown_keys, pipelined, sign_in)
}


async def _stay(attacker: Attacker, sent: bytes) -> None:
    """Send something, read what is answered, and stay until the connection is closed."""
    reader, writer = await attacker.connect()
    try:
        writer.write(sent)
        while True:
            await attacker.status(reader)
    finally:
        writer.transport.abort()


def _body(**fields: object) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], **fields}).encode()


async def main(kind: str, port: int, connections: int, seconds: float) -> None:
    """Attack, and print what came of it."""
    attacker = Attacker(port, os.environ["KEY"])
    await attacker.run(ATTACKS[kind], connections, seconds)
    print(json.dumps(dict(attacker.statuses)))


if __name__ == "__main__":
    os.nice(NICENESS)
    file_limits.allow(4096)
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))

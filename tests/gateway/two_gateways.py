"""Two gateway processes of one host, as `hearth up` runs them, on the test database and a Redis of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from django.db import connection

from hearth import secrets
from hearth.env import gateway_sockets_dir
from hearth.instance import from_environment
from hearth.roles import BY_NAME
from tests.gateway.private_redis import PrivateRedis
from tests.ports import free_ports

#: Until a process serves, and until both have heard of each other.
PATIENCE_SECONDS = 60


class Process:
    """One gateway process."""

    def __init__(self, number: int, folder: Path, environment: dict[str, str], port: int) -> None:
        instance = replace(from_environment(), port=port, metrics_port=port + 1)
        self.url = f"http://127.0.0.1:{port}/v1"
        self._log = (folder / f"gateway-{number}.log").open("wb")
        self._process = subprocess.Popen(
            BY_NAME["gateway"].command(instance),
            env=environment | {"HEARTH_PORT": str(port), "HEARTH_METRICS_PORT": str(port + 1)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the server and its worker."""
        os.killpg(self._process.pid, what)

    def close(self) -> None:
        """Kill it."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
        self._process.wait()
        self._log.close()


class Gateways:
    """Both processes, and a client of theirs."""

    def __init__(
        self, processes: list[Process], session: aiohttp.ClientSession, redis: PrivateRedis, data_dir: Path
    ) -> None:
        self.processes = processes
        self.redis = redis
        self.wal = data_dir / "wal"
        self._session = session

    async def ready(self) -> None:
        """Wait until both know the model."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            for process in self.processes:
                while not await self._serves(process):  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.1)

    async def ask(self, process: int, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """Send a request; returns with the head of its answer."""
        return await self._session.post(f"{self.processes[process].url}/chat/completions", json=body)

    async def _serves(self, process: Process) -> bool:
        try:
            async with self._session.get(f"{process.url}/models") as answer:
                return answer.status == 200 and bool((await answer.json())["data"])
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def two_gateways(app_database_url: str, key: str) -> AsyncIterator[Gateways]:
    """Run both for as long as the block lasts, and ask them with this key."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-two-"))
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)
    shutil.copy2(secrets.path_in(Path(os.environ["HEARTH_DATA_DIR"])), data_dir)
    instance = replace(from_environment(), data_dir=data_dir)
    database = urlsplit(app_database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    port = free_ports(4)
    processes: list[Process] = []
    try:
        async with PrivateRedis() as redis:
            environment = instance.environment("gateway") | {"DATABASE_URL": database, "REDIS_URL": redis.url}
            processes += [Process(number, folder, environment, port + 2 * number) for number in range(2)]
            try:
                client = aiohttp.ClientTimeout(total=4 * PATIENCE_SECONDS)
                async with aiohttp.ClientSession(
                    headers={"authorization": f"Bearer {key}"}, timeout=client, connector=aiohttp.TCPConnector(limit=0)
                ) as session:
                    gateways = Gateways(processes, session, redis, data_dir)
                    await gateways.ready()
                    yield gateways
            finally:
                for process in processes:
                    process.close()
    finally:
        shutil.rmtree(gateway_sockets_dir(data_dir), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

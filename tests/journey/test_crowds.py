"""Hundreds of connections of every kind without a key: no tenant notices, and everything goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.gateway.load import Address
from benchmarks.hostile import quiet
from hearth.celery import RECONCILE_SECONDS
from hearth.instance import file_limits
from tenants.keys import key_format
from tests.journey.instance import MODEL, Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.long]

KINDS = ("idle", "slow_head", "slow_body", "unknown_keys", "pipelined", "sign_in")
CONNECTIONS = 500
SECONDS = 60
#: The drain keeps up: no usage waits for longer.
LAG_SECONDS = 10
RECOVERED_SECONDS = 5


@pytest.mark.timeout(600)
def test_five_hundred_connections_of_each_kind_take_nothing_from_anybody(simulated: Instance) -> None:
    file_limits.allow(4096)
    port = int(simulated.environment["HEARTH_PORT"])
    address = Address(port=port, model=MODEL, api_key=simulated.key("globex"))
    with crowd(port), watched(simulated) as lags:
        ticks = total(simulated, "hearth_reconcile_tick_seconds_count")
        served = asyncio.run(quiet.ask(address, SECONDS))
        ticks = total(simulated, "hearth_reconcile_tick_seconds_count") - ticks
    assert served.failures == 0
    assert ticks >= SECONDS / RECONCILE_SECONDS - 1
    assert lags and max(lags) < LAG_SECONDS
    wait_for(lambda: usual(simulated), "the usual state", seconds=RECOVERED_SECONDS)


@contextmanager
def crowd(port: int) -> Iterator[None]:
    """Keep the connections open for as long as the block lasts. None has a key that exists."""
    key = key_format.generate("hk").text()
    clients = []
    try:
        for kind in KINDS:
            to = str(port + 1 if kind == "sign_in" else port)
            command = [sys.executable, "-m", "benchmarks.hostile.attacker", kind, to, str(CONNECTIONS), "600"]
            clients.append(subprocess.Popen(command, env=os.environ | {"KEY": key}, stdout=subprocess.DEVNULL))
        yield
    finally:
        for client in clients:
            client.kill()
            client.wait()


@contextmanager
def watched(instance: Instance) -> Iterator[list[float]]:
    """Note once a second how old the oldest usage is that is not yet in the database."""
    lags: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1):
            with contextlib.suppress(AssertionError):  # a page that did not answer this time
                lags.append(total(instance, "hearth_wal_lag_seconds"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lags
    finally:
        over.set()
        watcher.join()


def total(instance: Instance, name: str) -> float:
    """Return the sum of a metric over all roles."""
    values = re.findall(rf"^{name}(?:{{.*}})? ([0-9.e+-]+)$", "\n".join(instance.metrics().values()), re.MULTILINE)
    assert values, name
    return sum(map(float, values))


def usual(instance: Instance) -> bool:
    """Return whether nothing of the crowd is left and requests are answered."""
    answered = instance.chat("globex", "Hello?", headers={"cache-control": "no-cache"}).status == 200
    return answered and total(instance, "hearth_gateway_in_flight_requests") == 0

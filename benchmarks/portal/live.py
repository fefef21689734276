"""What open live pages cost: a portal as in production, WebSockets to it, and data that changes meanwhile.

One viewer, and 50, of the overview of all tenants and of the fleet; and 50 viewers of as many tenants' pages.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import psutil
import psycopg

from benchmarks import database
from benchmarks.gateway.site import Running, Site
from benchmarks.machine import Cores
from benchmarks.portal.report import Watched
from hearth import secrets
from hearth.instance.instance import Instance
from hearth.instance.roles import BY_NAME

STEPS = "benchmarks.portal.steps"
VIEWERS = 50
OVERVIEW, FLEET = "/ws/usage/all?period=24h", "/ws/fleet"
#: From connecting until what was read for the viewers before has gone out.
SETTLE_SECONDS = 8.0
#: The portal accepts 32 WebSockets of a client's address; viewers have addresses of their own.
ADDRESSES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A live page that somebody has open."""

    path: str
    session: str


@dataclass(slots=True)
class Received:
    """What all viewers have received."""

    messages: int = 0
    size: int = 0


def watched(instance: Instance, folder: Path, cores: Cores, *, seconds: float, rounds: int) -> Iterator[Watched]:
    """Open pages and yield what each stage cost, the stages in turn. Raises NotRun."""
    signed_in = database.run_step(instance, STEPS, "sessions", str(VIEWERS))
    operators = [each["session"] for each in signed_in if each["who"] == "operator"]
    owners = {each["slug"]: each["session"] for each in signed_in if each["who"] == "owner"}
    stages: Mapping[str, Sequence[Page]] = {
        "nobody": [],
        "1 viewer of Overview": _pages([OVERVIEW], operators[:1]),
        f"{VIEWERS} viewers of Overview": _pages([OVERVIEW], operators),
        "1 viewer of Fleet": _pages([FLEET], operators[:1]),
        f"{VIEWERS} viewers of Fleet": _pages([FLEET], operators),
        "the owner of 1 tenant": [Page(path="/ws/usage/tenant/t0?period=24h", session=owners["t0"])],
        f"the owners of {VIEWERS} tenants": [
            Page(path=f"/ws/usage/tenant/{slug}?period=24h", session=session) for slug, session in owners.items()
        ],
    }
    with _serving(instance, folder, cores) as portal:
        for number in range(rounds):
            for what, pages in stages.items():
                yield asyncio.run(_watch(instance, portal, what, pages, seconds))
                print(f"live pages, round {number + 1} of {rounds}: {what}", file=sys.stderr, flush=True)


def _pages(paths: Sequence[str], sessions: Sequence[str]) -> list[Page]:
    return [Page(path=path, session=session) for session in sessions for path in paths]


@contextmanager
def _serving(instance: Instance, folder: Path, cores: Cores) -> Iterator[Running]:
    """Run the portal as in production, and the changes."""
    with ExitStack() as cleanup:
        site = Site(folder=folder, cores=cores, cleanup=cleanup)
        portal = site.start("portal", BY_NAME["portal"].command(instance), instance.environment("portal"))
        portal.wait_until(lambda: _answers(instance))
        site.start("changes", [sys.executable, "-m", STEPS, "change", "0"], instance.environment("drain"))
        yield portal


def _answers(instance: Instance) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{instance.portal_port}/portal/login/", timeout=30):
            return True
    except OSError:
        return False


async def _watch(instance: Instance, portal: Running, what: str, pages: Sequence[Page], seconds: float) -> Watched:
    received = Received()
    async with AsyncExitStack() as stack:
        sockets = [await _open(stack, instance, number, page) for number, page in enumerate(pages)]
        readers = [asyncio.create_task(_read(socket, received)) for socket in sockets]
        await asyncio.sleep(SETTLE_SECONDS)
        before = (_transactions(instance), portal.cpu_seconds(), _postgres_cpu_seconds(instance))
        earlier, began = Received(received.messages, received.size), time.monotonic()
        await asyncio.sleep(seconds)
        taken = time.monotonic() - began
        after = (_transactions(instance), portal.cpu_seconds(), _postgres_cpu_seconds(instance))
        transactions, own, server = ((now - then) / taken for now, then in zip(after, before, strict=True))
        for reader in readers:
            assert not reader.done(), f"{what}: the portal closed a socket"
            reader.cancel()
    return Watched(
        what=what,
        sockets=len(pages),
        transactions=transactions,
        portal_cpu_ms=1000 * own,
        postgres_cpu_ms=1000 * server,
        messages=(received.messages - earlier.messages) / taken,
        kib=(received.size - earlier.size) / taken / 1024,
    )


async def _open(stack: AsyncExitStack, instance: Instance, number: int, page: Page) -> aiohttp.ClientWebSocketResponse:
    base = f"http://127.0.0.1:{instance.portal_port}"
    connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{2 + number % ADDRESSES}", 0))
    cookies = {f"hearth-session-{instance.port}": page.session}
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, cookies=cookies))
    opened = session.ws_connect(f"{base}{page.path}", headers={"Origin": base}, max_msg_size=0)
    return await stack.enter_async_context(opened)


async def _read(socket: aiohttp.ClientWebSocketResponse, received: Received) -> None:
    async for message in socket:
        received.messages += 1
        received.size += len(message.data)


def _transactions(instance: Instance) -> int:
    with psycopg.connect(instance.app_url(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _postgres_cpu_seconds(instance: Instance) -> float:
    """Return the processor time of the server's processes, those that have ended included."""
    server = instance.postgres(secrets.load(instance.data_dir))
    process = server.process() if server is not None else None
    assert process is not None, "its PostgreSQL has ended"
    postmaster = psutil.Process(process.pid)
    ended = postmaster.cpu_times()
    total = ended.children_user + ended.children_system
    for child in postmaster.children():
        total += _nanoseconds(child.pid) / 1e9
    return total


def _nanoseconds(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:  # it has ended
        return 0

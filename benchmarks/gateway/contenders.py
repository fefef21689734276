"""Everything that is measured: no gateway at all, the bare proxy, Hearth, and the peers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks.errors import NotRun
from benchmarks.gateway import bare_proxy, hearth_under_test, peers
from benchmarks.gateway.hearth_under_test import Gateways, HearthUnderTest
from benchmarks.gateway.load import HITS, NEW, REPLAY, STREAM, Address, Traffic, ask
from benchmarks.gateway.peers import Peer
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL
from hearth.paths import ROOT

DIRECT = "direct"
BARE = "bare-proxy"
HEARTH = "hearth"
ROUTERS_AND_GATEWAYS = (NEW, STREAM)
#: What every answer of the mock upstream holds.
MARK = b"chatcmpl-0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A contender that is up and gives right answers. ``companions`` work off its cores and pause with it."""

    name: str
    address: Address
    running: tuple[Running, ...] = ()
    companions: tuple[Running, ...] = ()
    hearth: HearthUnderTest | None = None

    def pause(self) -> None:
        """Stop it, so that it takes nothing from the one that is measured."""
        for running in (*self.running, *self.companions):
            running.pause()

    def resume(self) -> None:
        """Let it go on."""
        for running in (*self.running, *self.companions):
            running.resume()

    def end(self) -> None:
        """End it, but not its companions."""
        for running in self.running:
            running.end()

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used, companions apart, to 10 ms."""
        return sum(running.cpu_seconds() for running in self.running)

    def memory_bytes(self) -> int:
        """Return its resident memory, companions apart, pages that processes share counted once."""
        return sum(running.memory_bytes() for running in self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something to measure. ``title`` names it, with its version; ``launch`` gets how many processes it may have."""

    name: str
    title: str
    traffics: tuple[Traffic, ...]
    launch: Callable[[Site, int], Up]


def everything() -> tuple[Contender, ...]:
    """Return all contenders in the order of the table."""
    python = f"granian {version('granian')}, aiohttp {version('aiohttp')}"
    return (
        Contender(name=DIRECT, title="no gateway", traffics=ROUTERS_AND_GATEWAYS, launch=_direct),
        Contender(name=BARE, title=f"bare Python proxy ({python})", traffics=ROUTERS_AND_GATEWAYS, launch=_bare_proxy),
        Contender(name=HEARTH, title="Hearth", traffics=(NEW, HITS, STREAM, REPLAY), launch=_hearth),
        *(_contender(peer) for peer in peers.PEERS),
    )


def start(contender: Contender, site: Site, *, processes: int = 1) -> Up:
    """Start it, wait until it answers as the upstream does, whole and streamed, and pause it. Raises NotRun."""
    return checked(contender.launch(site, processes))


def checked(up: Up) -> Up:
    """Wait until it answers as the upstream does, whole and streamed, and pause it. Raises NotRun."""
    for running in up.running:
        running.wait_until(lambda: MARK in (ask(up.address, prompt="Are you there?") or b""))
    streamed = ask(up.address, prompt="Are you streaming?", stream=True) or b""
    if MARK not in streamed or b"data: [DONE]" not in streamed:
        raise NotRun("its streams are not what the upstream sends", streamed[-500:].decode(errors="replace"))
    up.pause()
    return up


def _direct(site: Site, processes: int) -> Up:
    return Up(name=DIRECT, address=Address(port=site.upstream_port, api_key="none", model=MODEL))


def _bare_proxy(site: Site, processes: int) -> Up:
    port = free_port()
    address = Address(port=port, api_key="sk-bench", model=MODEL)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        bare_proxy.UPSTREAM_VARIABLE: site.upstream_url,
        bare_proxy.KEY_VARIABLE: address.api_key,
    }
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http", "1", "--no-ws", "--loop", "uvloop", "--backpressure", "8192", "--log-level", "warning"]
    command += ["benchmarks.gateway.bare_proxy:application"]
    cores = site.cores.of(processes)
    running = [site.start(f"{BARE}-{processes}-{n}", command, environment, cores=cores) for n in range(processes)]
    return Up(name=BARE, address=address, running=tuple(running))


def _hearth(site: Site, processes: int) -> Up:
    return _of_hearth(hearth_under_test.start(site, processes))


def more_of_hearth(site: Site, first: Up, gateways: Gateways) -> Up:
    """Start further gateways of an instance that is up, on a port of their own, check and pause them. Raises NotRun."""
    assert first.hearth is not None, "only Hearth has an instance"
    first.resume()
    try:
        return checked(_of_hearth(first.hearth.more(site, gateways)))
    finally:
        first.pause()


def _of_hearth(started: HearthUnderTest) -> Up:
    return Up(
        name=HEARTH,
        address=started.address,
        running=started.gateways,
        companions=(started.drain,),
        hearth=started,
    )


def _contender(peer: Peer) -> Contender:
    def launch(site: Site, processes: int) -> Up:
        peer.install()
        address, running = peer.start(site, processes)
        return Up(name=peer.name, address=address, running=(running,))

    return Contender(name=peer.name, title=f"{peer.title} {peer.version}", traffics=ROUTERS_AND_GATEWAYS, launch=launch)

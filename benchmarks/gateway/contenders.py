"""Everything that is measured: no gateway at all, the bare proxy, Hearth, and the peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version

from benchmarks.errors import NotRun
from benchmarks.gateway import bare_proxy, hearth_under_test, peers
from benchmarks.gateway.hearth_under_test import HearthUnderTest
from benchmarks.gateway.load import Address, Workload, ask
from benchmarks.gateway.peers import Peer
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL
from hearth import env

DIRECT = "direct"
BARE = "bare-proxy"
HEARTH = "hearth"
ROUTERS_AND_GATEWAYS: tuple[Workload, ...] = ("new", "stream")
#: What every answer of the mock upstream holds.
MARK = b"chatcmpl-0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A contender that is up and gives right answers. ``companions`` work off its core and pause with it."""

    name: str
    address: Address
    running: Running | None = None
    companions: tuple[Running, ...] = ()
    hearth: HearthUnderTest | None = None

    def pause(self) -> None:
        """Stop it, so that it takes nothing from the one that is measured."""
        for running in self._all():
            running.pause()

    def resume(self) -> None:
        """Let it go on."""
        for running in self._all():
            running.resume()

    def _all(self) -> tuple[Running, ...]:
        return self.companions if self.running is None else (self.running, *self.companions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something to measure. ``title`` names it, with its version, in what is published."""

    name: str
    title: str
    workloads: tuple[Workload, ...]
    start: Callable[[Site], Up]


def everything() -> tuple[Contender, ...]:
    """Return all contenders in the order of the table."""
    python = f"granian {version('granian')}, aiohttp {version('aiohttp')}"
    return (
        Contender(name=DIRECT, title="no gateway", workloads=ROUTERS_AND_GATEWAYS, start=_direct),
        Contender(name=BARE, title=f"bare Python proxy ({python})", workloads=ROUTERS_AND_GATEWAYS, start=_bare_proxy),
        Contender(name=HEARTH, title="Hearth", workloads=("new", "repeated", "stream"), start=_hearth),
        *(_contender(peer) for peer in peers.PEERS),
    )


def start(contender: Contender, site: Site) -> Up:
    """Start it, wait until it answers as the upstream does, whole and streamed, and pause it. Raises NotRun."""
    up = contender.start(site)
    if up.running is not None:
        up.running.wait_until(lambda: MARK in (ask(up.address, prompt="Are you there?") or b""))
    streamed = ask(up.address, prompt="Are you streaming?", stream=True) or b""
    if MARK not in streamed or b"data: [DONE]" not in streamed:
        raise NotRun("its streams are not what the upstream sends", streamed[-500:].decode(errors="replace"))
    up.pause()
    return up


def _direct(site: Site) -> Up:
    return Up(name=DIRECT, address=Address(port=site.upstream_port, api_key="none", model=MODEL))


def _bare_proxy(site: Site) -> Up:
    port = free_port()
    place = replace(hearth_under_test.place(site.folder), port=port)
    address = Address(port=port, api_key="sk-bench", model=MODEL)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(env.ROOT),
        bare_proxy.UPSTREAM_VARIABLE: site.upstream_url,
        bare_proxy.KEY_VARIABLE: address.api_key,
    }
    command = hearth_under_test.command(place, "benchmarks.gateway.bare_proxy:application")
    return Up(name=BARE, address=address, running=site.start(BARE, command, environment, core=site.cores.contender))


def _hearth(site: Site) -> Up:
    started = hearth_under_test.start(site)
    return Up(
        name=HEARTH,
        address=started.address,
        running=started.gateway,
        companions=(started.drain,),
        hearth=started,
    )


def _contender(peer: Peer) -> Contender:
    def start_peer(site: Site) -> Up:
        peer.install()
        address, running = peer.start(site)
        return Up(name=peer.name, address=address, running=running)

    return Contender(
        name=peer.name, title=f"{peer.title} {peer.version}", workloads=ROUTERS_AND_GATEWAYS, start=start_peer
    )

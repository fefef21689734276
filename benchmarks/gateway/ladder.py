"""What each stage of the journey costs: stages are added to Hearth one by one, beginning with the bare proxy."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.errors import NotRun
from benchmarks.gateway import contenders
from benchmarks.gateway.closed_loop import Load
from benchmarks.gateway.contenders import BARE, HEARTH, Up
from benchmarks.gateway.hearth_under_test import Gateways
from benchmarks.gateway.lineup import Lineup, running
from benchmarks.gateway.load import NEW, new_run
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.rounds import Sample, sample
from benchmarks.gateway.site import Site

RUNGS_APPLICATION = "benchmarks.gateway.rungs:application"
RUNG_VARIABLE = "BENCH_RUNG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Hearth with some stages. ``parts``: of benchmarks/gateway/rungs.py; None: the gateway as it is in production."""

    title: str
    tenant: str
    parts: str | None = None
    sync: str = "group"


RUNGS = (
    Rung(title="Hearth: key, checks, own HTTP", tenant="open", parts=""),
    Rung(title="+ limits and a budget", tenant="limited", parts=""),
    Rung(title="+ cache key, lookup and store", tenant="full", parts=""),
    Rung(title="+ routing", tenant="full", parts="routing"),
    Rung(title="+ write-ahead log: everything on", tenant="full"),
    Rung(title="+ `HEARTH_WAL_SYNC=always`", tenant="full", sync="always"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung's samples, by number of connections."""

    title: str
    samples: dict[int, Sample]


def measure(lineup: Lineup, plan: Plan) -> tuple[list[Step], dict[str, str]]:
    """Climb it once, from the bare proxy up; a rung that cannot be run is named with its reason."""
    hearth, bare = lineup.find(HEARTH), lineup.find(BARE)
    steps: list[Step] = []
    lost: dict[str, str] = {}
    if hearth is None:
        return steps, lost
    if bare is not None:
        print("Ladder: bare proxy", flush=True)
        steps.append(_step(lineup.site, "bare Python proxy", bare, plan))
    for number, rung in enumerate(RUNGS):
        print(f"Ladder: {rung.title}", flush=True)
        try:
            steps.append(_climb(lineup.site, hearth, rung, number, plan))
        except NotRun as error:
            print(error, flush=True)
            lost[f"Ladder, {rung.title}"] = error.problem
    return steps, lost


def _climb(site: Site, hearth: Up, rung: Rung, number: int, plan: Plan) -> Step:
    environment = {"HEARTH_WAL_SYNC": rung.sync}
    if rung.parts is not None:
        environment[RUNG_VARIABLE] = rung.parts
    gateways = Gateways(
        name=f"hearth-rung-{number}",
        tenant=rung.tenant,
        application=None if rung.parts is None else RUNGS_APPLICATION,
        environment=environment,
    )
    up = contenders.more_of_hearth(site, hearth, gateways)
    try:
        return _step(site, rung.title, up, plan)
    finally:
        up.end()


def _step(site: Site, title: str, up: Up, plan: Plan) -> Step:
    with running(up):
        if plan.warm_up_seconds:
            sample(site, up, Load(traffic=NEW, connections=4, seconds=plan.warm_up_seconds, run=new_run()))
        samples = {}
        for connections in plan.ladder_connections:
            load = Load(traffic=NEW, connections=connections, seconds=plan.seconds, run=new_run())
            samples[connections] = sample(site, up, load)
    return Step(title=title, samples=samples)

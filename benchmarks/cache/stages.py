"""What is measured of a cache, stage by stage: hits of each level, a skewed load, identical streams at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier

from benchmarks.cache.plan import CONNECTIONS, SKEW, WARM_PROMPTS, Plan
from benchmarks.cache.questions import Question, write_template
from benchmarks.errors import NotRun
from benchmarks.gateway import upstream
from benchmarks.gateway.closed_loop import Outcome, drive
from benchmarks.gateway.contenders import Contender, Up
from benchmarks.gateway.lineup import Lineup
from benchmarks.gateway.load import Address, ask, new_run
from benchmarks.gateway.rounds import Sample
from benchmarks.gateway.site import Site

KEYS = Path(__file__).parent / "keys.lua"
#: Tried one after another, until all prompts were asked.
WARM_UP_SECONDS = (1, 4, 16, 40)
#: A tenant whose quota is smaller than what is asked.
SMALL = "small"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Which of numbered prompts are asked: in turn from number ``start``, or by Zipf's law from that seed."""

    prompts: int
    start: int = 0
    skew: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the skewed load. ``memory_bytes``: of the gateway, at its end."""

    sample: Sample
    memory_bytes: int

    @property
    def hit_share(self) -> float:
        return 1 - self.sample.upstream_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Identical streams at once: how many answers were whole, and how often the engine was asked."""

    streams: int
    whole: int
    engine_requests: int
    seconds: float


def hits(lineup: Lineup, plan: Plan) -> dict[str, dict[Question, list[Sample]]]:
    """Measure hits of prompts that the first level holds, everybody in turn. Returns samples by name."""
    found: dict[str, dict[Question, list[Sample]]] = {contender.name: {} for contender, _ in lineup.ready}

    def take(contender: Contender, up: Up) -> None:
        for size in plan.sizes:
            run = new_run()
            for streamed in (False, True):
                question = Question(answer=size, streamed=streamed)
                _warm_up(lineup.site, up, question, run)
                sample = _sample(lineup.site, up, question, run, Draw(prompts=WARM_PROMPTS), plan.seconds)
                found[contender.name].setdefault(question, []).append(sample)

    for number in range(plan.rounds):
        lineup.take_turns(f"Hits, round {number + 1} of {plan.rounds}", take, first=number)
    return found


def second_level(site: Site, up: Up, plan: Plan) -> Sample:
    """Measure hits that only Redis has: more prompts in turn than the first level holds. Raises NotRun.

    They go on where the filling ended, with those that were not asked for the longest time.
    """
    run, question, prompts = new_run(), Question(), plan.redis_prompts
    asked = _drive(site, up.address, question, run, Draw(prompts=prompts), plan.fill_seconds).requests
    start = asked + CONNECTIONS if asked >= prompts else 0
    return _sample(site, up, question, run, Draw(prompts=prompts, start=start), plan.seconds)


def skewed(site: Site, up: Up, plan: Plan, key: str | None = None) -> list[Window]:
    """Ask as people do, some prompts far more often than others; as another tenant if its key is given."""
    run, asked = new_run(), up if key is None else replace(up, address=replace(up.address, api_key=key))
    windows = []
    for number in range(plan.skew_windows):
        draw = Draw(prompts=plan.skew_prompts, start=number, skew=SKEW)
        sample = _sample(site, asked, Question(), run, draw, plan.skew_seconds)
        windows.append(Window(sample=sample, memory_bytes=up.memory_bytes()))
    return windows


def flights(lineup: Lineup, plan: Plan) -> dict[str, list[Flight]]:
    """Send identical new streams at once, again and again, to everybody in turn. Returns what came of them by name."""
    found: dict[str, list[Flight]] = {contender.name: [] for contender, _ in lineup.ready}

    def take(contender: Contender, up: Up) -> None:
        with ThreadPoolExecutor(plan.flight_streams) as pool:
            for _ in range(plan.flight_rounds):
                found[contender.name].append(_flight(lineup.site, up, plan.flight_streams, pool))

    lineup.take_turns("Identical streams", take)
    return found


def _flight(site: Site, up: Up, streams: int, pool: ThreadPoolExecutor) -> Flight:
    prompt, together = f"Say it once: {new_run()}", Barrier(streams)
    before, began = upstream.answered(site), time.perf_counter()
    asked = [pool.submit(_follow, up.address, prompt, together) for _ in range(streams)]
    answers = [each.result() for each in asked]
    return Flight(
        streams=streams,
        whole=sum(b"data: [DONE]" in (answer or b"") for answer in answers),
        engine_requests=upstream.answered(site) - before,
        seconds=time.perf_counter() - began,
    )


def _follow(address: Address, prompt: str, together: Barrier) -> bytes | None:
    together.wait()
    return ask(address, prompt=prompt, stream=True)


def _warm_up(site: Site, up: Up, question: Question, run: str) -> None:
    """Ask every prompt at least once, however slow that is. Raises NotRun."""
    for seconds in WARM_UP_SECONDS:
        if _drive(site, up.address, question, run, Draw(prompts=WARM_PROMPTS), seconds).requests >= WARM_PROMPTS:
            return
    raise NotRun(f"it answers fewer than {WARM_PROMPTS} requests in {WARM_UP_SECONDS[-1]} s")


def _sample(site: Site, up: Up, question: Question, run: str, draw: Draw, seconds: int) -> Sample:
    asked, spent = upstream.answered(site), up.cpu_seconds()
    outcome = _drive(site, up.address, question, run, draw, seconds)
    return Sample(
        outcome=outcome, cpu_seconds=up.cpu_seconds() - spent, upstream_requests=upstream.answered(site) - asked
    )


def _drive(site: Site, address: Address, question: Question, run: str, draw: Draw, seconds: int) -> Outcome:
    template = write_template(site.folder, address, question, run)
    return drive(address, KEYS, arguments(template, draw), connections=CONNECTIONS, seconds=seconds)


def arguments(template: Path, draw: Draw) -> tuple[str, ...]:
    """Return the arguments of keys.lua."""
    return str(template), str(draw.prompts), str(draw.skew), str(draw.start)

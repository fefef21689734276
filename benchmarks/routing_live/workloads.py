"""The workloads of the simulation, drawn for live engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.errors import NotRun
from benchmarks.routing import workloads
from benchmarks.routing.workload import Conversation, Turn, Workload
from benchmarks.routing.workloads import TRACE_BLOCK, USUAL_LOAD, USUAL_REPLICAS, Draw
from benchmarks.routing_live import texts

DRAWS: dict[str, Draw] = {
    "agents": workloads.agents,
    "hot-prompt": workloads.hot_prompt,
    "shared-prefix": workloads.shared_prefix,
    "unique": workloads.unique,
    "mixed": workloads.mixed,
}
#: For how long each is played, seconds. Sessions take a while until as many run as end.
SECONDS = {"agents": 90.0, "mixed": 90.0, "shared-prefix": 60.0, "hot-prompt": 25.0, "unique": 25.0}
TRACE_SECONDS = 60.0
#: A trace is played with blocks of this many tokens instead of its 512, and as many times faster, which is the same
#: load by shorter prompts. There are enough of them in a short run then.
TRACE_TOKENS = 64


def draw(name: str, trace: Path | None, *, load: float, replicas: int, slowdown: float, seed: int) -> Workload:
    """Return a workload of DRAWS, or else a trace. ``slowdown``: how much longer everything takes. Raises NotRun."""
    rate = load / USUAL_LOAD * replicas / USUAL_REPLICAS
    if name in DRAWS:
        drawn = DRAWS[name](rate, Random(seed))
    else:
        assert trace is not None, f"{name} is not a workload"
        drawn = _shortened(workloads.trace(trace)(rate, Random(seed)))
    if not all(texts.is_sayable(conversation.turns) for conversation in drawn.conversations):
        raise NotRun(f"{name} has turns that are too short for a text")
    return _slowed(drawn, slowdown)


def _shortened(workload: Workload) -> Workload:
    """Return a trace with shorter blocks and prompts, and with arrivals that are as much closer."""
    by = TRACE_BLOCK // TRACE_TOKENS

    def shortened(turn: Turn) -> Turn:
        prompt_tokens = max(turn.prompt_tokens // by, texts.LEAST_PROMPT_TOKENS)
        return replace(turn, prompt_tokens=prompt_tokens, output_tokens=max(1, turn.output_tokens // by))

    return replace(workload, conversations=_changed(workload, 1 / by, shortened), block_size=TRACE_TOKENS)


def _slowed(workload: Workload, slowdown: float) -> Workload:
    def slowed(turn: Turn) -> Turn:
        return replace(turn, think_seconds=turn.think_seconds * slowdown)

    return replace(
        workload,
        conversations=_changed(workload, slowdown, slowed),
        tokens_per_second=workload.tokens_per_second / slowdown,
    )


def _changed(workload: Workload, times: float, change: Callable[[Turn], Turn]) -> tuple[Conversation, ...]:
    """Return the conversations, beginning at ``times`` their time, with other turns."""
    return tuple(
        replace(each, at=each.at * times, turns=tuple(map(change, each.turns))) for each in workload.conversations
    )

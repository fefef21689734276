"""How much a run measures: the whole in about ten minutes, a glance within one and a half."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cache.peers import Kind
from benchmarks.cache.questions import SIZES, AnswerSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Windows are whole seconds."""

    rounds: int
    seconds: int
    sizes: tuple[AnswerSize, ...]
    #: Prompts of the second level's, asked in turn: more than the first level holds, so it never has the next one.
    redis_prompts: int
    fill_seconds: int
    #: Prompts of the skewed load, and windows of ``skew_seconds``.
    skew_prompts: int
    skew_windows: int
    skew_seconds: int
    #: How often identical streams are sent at once.
    flight_streams: int = 100
    flight_rounds: int
    peers: tuple[Kind, ...]


#: Connections of every closed loop.
CONNECTIONS = 16
#: Prompts that the first level holds many times over.
WARM_PROMPTS = 64
#: Zipf's exponent.
SKEW = 1.0
FULL = Plan(
    rounds=3,
    seconds=4,
    sizes=SIZES,
    redis_prompts=40_000,
    fill_seconds=40,
    skew_prompts=200_000,
    skew_windows=4,
    skew_seconds=10,
    flight_rounds=5,
    peers=("local", "redis"),
)
QUICK = Plan(
    rounds=1,
    seconds=1,
    sizes=SIZES,
    redis_prompts=40_000,
    fill_seconds=20,
    skew_prompts=200_000,
    skew_windows=2,
    skew_seconds=4,
    flight_rounds=3,
    peers=(),
)

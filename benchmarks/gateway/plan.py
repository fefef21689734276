"""How much a run measures: the whole in about twelve minutes, a glance in about one and a half."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Windows are whole seconds. ``rounds`` and ``connections`` are of the closed loop, with bodies of 1 KB."""

    rounds: int
    seconds: int
    connections: tuple[int, ...]
    stream_connections: int = 16
    #: A slow contender needs seconds for sixteen streams at once: a short window would end before the first is whole.
    stream_windows: int
    #: 0: only prediction hits are warmed up, which they cannot do without.
    warm_up_seconds: int = 1
    #: Larger bodies, in bytes, and the connections they come on.
    larger_bodies: tuple[int, ...]
    larger_connections: int = 16
    larger_seconds: int
    #: Requests a second of the open loop; a contender is spared those beyond its capacity.
    rates: tuple[int, ...]
    open_seconds: int
    #: Lower rates are measured for longer, until there are this many answers, but not beyond the longest.
    open_answers: int
    longest_open_seconds: int
    #: Each contender at half of its capacity too.
    halves: bool = True
    idle_streams: int
    #: Contenders that are run with two processes too; None: all.
    pairs: frozenset[str] | None
    #: One and many connections of the ladder.
    ladder_connections: tuple[int, ...]

    def open_window(self, rate: int) -> int:
        """Return how long a rate is measured, seconds."""
        return min(self.longest_open_seconds, max(self.open_seconds, math.ceil(self.open_answers / rate)))


BUSY_CONNECTIONS = 64
#: A thousand answers have a p99.9.
FULL = Plan(
    rounds=2,
    seconds=3,
    connections=(1, 16, BUSY_CONNECTIONS),
    stream_windows=2,
    larger_bodies=(10_000, 100_000),
    larger_seconds=2,
    rates=(100, 500, 1_000),
    open_seconds=4,
    open_answers=1_000,
    longest_open_seconds=10,
    idle_streams=2_000,
    pairs=None,
    ladder_connections=(1, BUSY_CONNECTIONS),
)
QUICK = Plan(
    rounds=1,
    seconds=1,
    connections=(1, BUSY_CONNECTIONS),
    stream_windows=1,
    warm_up_seconds=0,
    larger_bodies=(100_000,),
    larger_seconds=1,
    rates=(500,),
    open_seconds=1,
    open_answers=1,
    longest_open_seconds=2,
    halves=False,
    idle_streams=200,
    pairs=frozenset({"hearth"}),
    ladder_connections=(BUSY_CONNECTIONS,),
)

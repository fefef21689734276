"""What is measured, in which order: cold and promoted starts take turns, on an idle node and beside a replica."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.coldstart import weights_read
from benchmarks.coldstart.neighbour import Neighbour
from benchmarks.coldstart.weights_read import WeightsRead
from benchmarks.errors import BenchError
from workers.engines import trial
from workers.engines.errors import TrialFailed
from workers.engines.trial import Start, Trials, Zygote

Kind = Literal["cold", "promoted"]
Place = Literal["idle", "beside"]
#: For how long the neighbour is watched alone.
ALONE_SECONDS = 5.0
#: What a killed engine leaves to the kernel is done by then.
REST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One start, and what the replica beside it served meanwhile; None on an idle node."""

    kind: Kind
    place: Place
    start: Start
    neighbour_tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """One zygote: how long it took to warm up, what it held, and how fast it went where it was evicted."""

    place: Place
    warm_up_seconds: float
    memory_bytes: int
    own_bytes: int
    eviction_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything measured in one run."""

    samples: tuple[Sample, ...]
    zygotes: tuple[Warm, ...]
    neighbour_alone_tokens_per_second: float
    reads: tuple[WeightsRead, ...]

    def seconds(self, kind: Kind, place: Place) -> list[float]:
        """Return the time to the first token of each such start."""
        return [sample.start.seconds for sample in self.samples if (sample.kind, sample.place) == (kind, place)]

    def ratio(self, place: Place) -> float:
        """Return the median of cold starts over the median of promotions."""
        return statistics.median(self.seconds("cold", place)) / statistics.median(self.seconds("promoted", place))


def measure(folder: Path, *, rounds: int) -> Figures:
    """Run every round on the idle node, then every round beside a replica. Raises BenchError."""
    reads = weights_read.measure(folder, rounds=rounds)
    try:
        return _measure(Trials("vllm", folder), rounds, reads)
    except TrialFailed as error:
        raise BenchError(error.problem, error.log) from error


def _measure(bench: Trials, rounds: int, reads: tuple[WeightsRead, ...]) -> Figures:
    samples: list[Sample] = []
    zygotes: list[Warm] = []
    for number in range(rounds):
        _say(number, rounds, "idle")
        samples += _round(bench, zygotes, "idle", None)
    with bench.serving() as serving:
        neighbour = Neighbour(serving.spec)
        with neighbour.serving():
            with neighbour.counting() as alone:
                time.sleep(ALONE_SECONDS)
            for number in range(rounds):
                _say(number, rounds, "beside a serving replica")
                samples += _round(bench, zygotes, "beside", neighbour)
    return Figures(
        samples=tuple(samples),
        zygotes=tuple(zygotes),
        neighbour_alone_tokens_per_second=alone[0],
        reads=reads,
    )


def _round(bench: Trials, zygotes: list[Warm], place: Place, neighbour: Neighbour | None) -> Sequence[Sample]:
    """Start one engine cold, promote one, evict one more zygote."""
    with bench.zygote() as evicted:
        zygotes.append(_warm(place, evicted, trial.end(evicted.process)))
    time.sleep(REST_SECONDS)
    cold = _sample("cold", place, neighbour, bench.cold)
    time.sleep(REST_SECONDS)
    with bench.zygote() as zygote:
        zygotes.append(_warm(place, zygote, None))
        time.sleep(REST_SECONDS)
        promoted = _sample("promoted", place, neighbour, lambda: bench.promote(zygote).start)
    time.sleep(REST_SECONDS)
    return cold, promoted


def _sample(kind: Kind, place: Place, neighbour: Neighbour | None, run: Callable[[], Start]) -> Sample:
    if neighbour is None:
        return Sample(kind=kind, place=place, start=run(), neighbour_tokens_per_second=None)
    with neighbour.counting() as rate:
        start = run()
    return Sample(kind=kind, place=place, start=start, neighbour_tokens_per_second=rate[0])


def _warm(place: Place, zygote: Zygote, eviction_seconds: float | None) -> Warm:
    return Warm(
        place=place,
        warm_up_seconds=zygote.status.seconds,
        memory_bytes=zygote.status.memory_bytes,
        own_bytes=zygote.own_bytes,
        eviction_seconds=eviction_seconds,
    )


def _say(number: int, rounds: int, where: str) -> None:
    print(f"Round {number + 1} of {rounds}, {where}", flush=True)

"""The costs of an engine's steps, fitted to the times of single prompts and of batches that decode."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from benchmarks.calibration.engines import STEP_TOKENS, Answer, Engine
from benchmarks.errors import BenchError

PROMPT_TOKENS = (64, 128, 256, 384, 512, 640, 768, 1024)
BATCHES = (1, 2, 4, 8, 16)
#: About what a sequence of the trace has when it decodes.
DECODED_PROMPT_TOKENS = 500
DECODED_TOKENS = 64
FEWEST_PIECES = 10
REPEATS = 2
VOCABULARY = range(300, 3000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What was measured, in seconds: (prompt tokens, time to the first token), (sequences, time of a step)."""

    prefill: Sequence[tuple[int, float]]
    decode: Sequence[tuple[int, float]]

    def __add__(self, other: Samples) -> Samples:
        return Samples(prefill=[*self.prefill, *other.prefill], decode=[*self.decode, *other.decode])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a step, and ``outside``: those of a request before its first step and after its first token."""

    fixed: float
    prompt_token: float
    decode: float
    outside: float

    def prefill(self, tokens: int) -> float:
        """Return the time of the steps that compute a prompt alone."""
        return self.fixed * ceil(tokens / STEP_TOKENS) + self.prompt_token * tokens

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments with which a simulated engine's steps cost the same."""
        return (
            *("--step-seconds", f"{self.fixed:.9f}"),
            *("--prefill-tokens-per-second", f"{1 / self.prompt_token:.3f}"),
            *("--sequence-seconds", f"{self.decode:.9f}"),
        )


async def measure(engine: Engine, random: Random) -> Samples:
    """Measure an engine that does nothing else, after a first prompt and batch that are not counted."""
    await _prefills(engine, random)
    await _decode(engine, random, BATCHES[-1])
    prefill: list[tuple[int, float]] = []
    decode: list[tuple[int, float]] = []
    for _ in range(REPEATS):
        prefill += await _prefills(engine, random)
        for batch in BATCHES:
            decode += [(batch, seconds) for seconds in await _decode(engine, random, batch)]
    return Samples(prefill=prefill, decode=decode)


async def measure_outside(engine: Engine, costs: Costs, random: Random) -> float:
    """Return the seconds that an engine whose steps have these costs spends on a request outside of them."""
    await _prefills(engine, random)
    found = [await _prefills(engine, random) for _ in range(REPEATS)]
    return statistics.median(seconds - costs.prefill(size) for sizes in found for size, seconds in sizes)


def fit(samples: Samples) -> Costs:
    """Return the costs that explain the medians of the samples best, by least squares.

    Batches tell the fixed part and that of a sequence, prompts the part of a token and what happens outside of steps.
    Raises BenchError when there are too few samples.
    """
    decode, fixed = _line(_medians(samples.decode))
    computed = [(size, seconds - fixed * ceil(size / STEP_TOKENS)) for size, seconds in _medians(samples.prefill)]
    prompt_token, outside = _line(computed)
    return Costs(fixed=fixed, prompt_token=prompt_token, decode=decode, outside=outside)


def drawn(random: Random, count: int) -> list[int]:
    """Return tokens that no other prompt begins with."""
    return random.choices(VOCABULARY, k=count)


async def _prefills(engine: Engine, random: Random) -> list[tuple[int, float]]:
    found = []
    for size in PROMPT_TOKENS:
        answer = await engine.ask(drawn(random, size), 1)
        found.append((size, answer.first_token_seconds))
    return found


async def _decode(engine: Engine, random: Random, batch: int) -> list[float]:
    """Return the seconds of a step that decodes for this many sequences, one figure of each."""
    prompts = [drawn(random, DECODED_PROMPT_TOKENS) for _ in range(batch)]
    # The prompts are computed first, so that the steps that are timed only decode.
    await asyncio.gather(*(engine.ask(prompt, 1) for prompt in prompts))
    return step_seconds(await asyncio.gather(*(engine.ask(prompt, DECODED_TOKENS) for prompt in prompts)))


def step_seconds(answers: Sequence[Answer]) -> list[float]:
    """Return each answer's seconds per token while all of them were written; they were asked at the same time.

    An answer that came in fewer than ten pieces meanwhile says nothing: this process had no time to read it.
    """
    begin = max(answer.first_token_seconds for answer in answers)
    end = min(answer.token_seconds[-1] for answer in answers)
    found = []
    for answer in answers:
        inside = [seconds for seconds in answer.token_seconds if begin <= seconds <= end]
        if len(set(inside)) >= FEWEST_PIECES:
            found.append((inside[-1] - inside[0]) / (len(inside) - 1))
    return found


def _medians(samples: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    sizes = sorted({size for size, _ in samples})
    return [(each, statistics.median(seconds for size, seconds in samples if size == each)) for each in sizes]


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return slope and intercept, none below zero. Raises BenchError when there are too few points."""
    if len(points) < 2:
        raise BenchError("The machine is too busy: answers came in too few pieces to tell steps apart.")
    found = statistics.linear_regression([size for size, _ in points], [seconds for _, seconds in points])
    return max(found.slope, 1e-9), max(found.intercept, 0.0)

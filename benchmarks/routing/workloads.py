"""The workloads of the comparison, each drawn from a seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.errors import NotRun
from benchmarks.routing.workload import Conversation, Turn, Workload

#: Tokens of a block in Mooncake's traces.
TRACE_BLOCK = 512
TRACE_REQUESTS = 3000
#: Arrivals of a trace come in bursts of this many seconds, in which its clock has no finer steps.
TRACE_STEP_SECONDS = 3.0
#: Rates below are of eight replicas at this load; what a workload needs at its ideal hit rate was tried out.
USUAL_LOAD = 0.7
USUAL_REPLICAS = 8
BLOCK = 32
CACHE_BLOCKS = 2400
TOKENS_PER_SECOND = 6000.0

#: Traces are played this much faster: then they are the usual load of the engines that are simulated.
TRACE_SPEED = 2.5

Draw = Callable[[float, Random], Workload]


def in_bursts(draw: Draw) -> Draw:
    """Return what draws the same with arrivals as the clock of a trace has them, all of 1.2 s at once."""

    def drawn(rate: float, random: Random) -> Workload:
        whole = draw(rate, random)
        step = TRACE_STEP_SECONDS / TRACE_SPEED / rate
        at_once = (replace(each, at=each.at // step * step) for each in whole.conversations)
        return replace(whole, conversations=tuple(at_once))

    return drawn


def trace(path: Path) -> Draw:
    """Return what draws the first requests of a trace in Mooncake's format: each arrival moved within its burst."""

    def draw(rate: float, random: Random) -> Workload:
        found = []
        with path.open() as file:
            for line in itertools.islice(file, TRACE_REQUESTS):
                try:
                    each = json.loads(line)
                    at = (each["timestamp"] / 1000 + random.uniform(0, TRACE_STEP_SECONDS)) / TRACE_SPEED / rate
                    blocks = tuple(each["hash_ids"][: each["input_length"] // TRACE_BLOCK])
                    turn = Turn(
                        prompt_tokens=max(1, each["input_length"]),
                        output_tokens=max(1, each["output_length"]),
                        blocks=blocks,
                    )
                except (ValueError, KeyError, TypeError) as error:
                    raise NotRun(f"{path} is not a trace in Mooncake's format", f"{line[:200]}\n{error!r}") from None
                found.append(Conversation(at=at, session=None, turns=(turn,)))
        found.sort(key=lambda each: each.at)
        return Workload(
            name=path.stem,
            conversations=tuple(found),
            block_size=TRACE_BLOCK,
            cache_blocks=1200,
            tokens_per_second=16_000,
        )

    return draw


def agents(rate: float, random: Random, tenants: int = 4) -> Workload:
    """Return 300 sessions of 5 to 15 turns that think for 2.5 s; the system prompt of each tenant is shared."""
    names = itertools.count()
    systems = [_blocks(names, 1024 // BLOCK) for _ in range(tenants)]
    found = []
    for number, at in enumerate(_arrivals(_count(300, rate), 3.4 * rate, random)):
        tenant = random.choice(range(tenants))
        known = systems[tenant]
        tokens = len(known) * BLOCK
        turns = []
        for _ in range(random.randint(5, 15)):
            prompt = tokens + random.randint(100, 900)
            answered = random.randint(50, 250)
            tokens = prompt + answered
            known += _blocks(names, tokens // BLOCK - len(known))
            think_seconds = random.expovariate(1 / 2.5)
            turns.append(Turn(prompt_tokens=prompt, output_tokens=answered, blocks=known, think_seconds=think_seconds))
        found.append(Conversation(at=at, session=b"session %d" % number, turns=tuple(turns), tenant=tenant))
    return _workload("agents", found)


def hot_prompt(rate: float, random: Random, requests: int = 2500) -> Workload:
    """Return requests of which nine in ten share a system prompt of 1,500 tokens."""
    names = itertools.count()
    hot = _blocks(names, 1500 // BLOCK)

    def turn() -> Turn:
        head = hot if random.random() < 0.9 else _blocks(names, len(hot))
        return _turn(head, random.randint(100, 500), random.randint(20, 100), names)

    return _workload("hot prompt", _single(_count(requests, rate), 60 * rate, turn, random))


def unique(rate: float, random: Random) -> Workload:
    """Return 2,500 requests that share nothing."""
    names = itertools.count()

    def turn() -> Turn:
        return _turn((), random.randint(500, 1500), random.randint(20, 100), names)

    return _workload("unique", _single(_count(2500, rate), 30 * rate, turn, random))


def short(rate: float, random: Random) -> Workload:
    """Return 4,000 requests of 20 to 120 tokens that share nothing, many at a time."""
    names = itertools.count()

    def turn() -> Turn:
        return _turn((), random.randint(20, 120), random.randint(10, 50), names)

    return _workload("short", _single(_count(4000, rate), 200 * rate, turn, random))


def shared_prefix(rate: float, random: Random) -> Workload:
    """Return llm-d's comparison: 60 groups with a prompt of 6,000 tokens each, five questions of 1,200, asked often."""
    names = itertools.count()
    heads = [_blocks(names, 6000 // BLOCK) for _ in range(60)]
    questions = [(head, _blocks(names, 1200 // BLOCK)) for head in heads for _ in range(5)]
    order = [each for _ in range(6) for each in random.sample(questions, len(questions))]
    left = iter(order)

    def turn() -> Turn:
        head, question = next(left)
        return Turn(prompt_tokens=7200, output_tokens=200, blocks=head + question)

    return _workload("shared prefix", _single(len(order), 9 * rate, turn, random), cache_blocks=2800)


def mixed(rate: float, random: Random) -> Workload:
    """Return a mix of sessions, a hot prompt, and long prompts of one client that share nothing."""
    names = itertools.count()
    sessions = agents(rate / 2, random).conversations
    offset = 1 + max(block for each in sessions for turn in each.turns for block in turn.blocks)
    names = itertools.count(offset)
    hot = _blocks(names, 1500 // BLOCK)

    def turn() -> Turn:
        if random.random() < 0.05:
            return _turn((), random.randint(8_000, 24_000), 50, names)
        return _turn(hot, random.randint(100, 500), random.randint(20, 100), names)

    others = _single(1500, 9 * rate, turn, random)
    return _workload("mixed", sorted([*sessions, *others], key=lambda each: each.at))


def prefix_repetition(rate: float, random: Random) -> Workload:
    """Return 2,500 requests as of vLLM's benchmark: one of 40 beginnings of 1,024 tokens, an end of 256."""
    names = itertools.count()
    heads = [_blocks(names, 1024 // BLOCK) for _ in range(40)]

    def turn() -> Turn:
        return _turn(random.choice(heads), 256, 128, names)

    return _workload("prefix repetition", _single(_count(2500, rate), 56 * rate, turn, random))


def adversarial(rate: float, random: Random) -> Workload:
    """Return sessions of agents beside a tenant that sends 16 prompts of 8,000 tokens at once, every ten seconds.

    The prompts of one burst share nothing, those of the next share 6,000 tokens that no engine has computed before.
    """
    sessions = agents(rate / 2, random).conversations
    names = itertools.count(1 + max(block for each in sessions for turn in each.turns for block in turn.blocks))
    found = []
    for burst in range(int(sessions[-1].at / 10)):
        for _ in range(round(max(1, 2 * rate))):
            shared = _blocks(names, 6000 // BLOCK) if burst % 2 else ()
            for _ in range(8):
                turn = _turn(shared, 8000 - len(shared) * BLOCK, 50, names)
                at = 10 * (burst + 1) + random.random()
                found.append(Conversation(at=at, session=None, turns=(turn,), tenant=4))
    return _workload("adversarial", sorted([*sessions, *found], key=lambda each: each.at))


def quiet(rate: float, random: Random) -> Workload:
    """Return 1,500 requests of four tenants that share nothing but each tenant's system prompt."""
    names = itertools.count()
    systems = [_blocks(names, 512 // BLOCK) for _ in range(4)]
    found = []
    for at in _arrivals(1500, 40 * rate, random):
        tenant = random.randrange(4)
        turn = _turn(systems[tenant], random.randint(300, 1200), random.randint(20, 100), names)
        found.append(Conversation(at=at, session=None, turns=(turn,), tenant=1 + tenant))
    return _workload("quiet", found)


def flood(rate: float, random: Random) -> Workload:
    """Return the requests of ``quiet`` with the same seed, and 4,000 of a fifth tenant at three times the capacity."""
    calm = quiet(rate, random).conversations
    names = itertools.count(1 + max(block for each in calm for turn in each.turns for block in turn.blocks))

    def turn() -> Turn:
        return _turn((), random.randint(500, 1500), random.randint(20, 100), names)

    per_second = 180 * rate  # with the rate at which the others are half of the capacity
    begins = calm[len(calm) // 10].at
    found = [
        Conversation(at=begins + each.at, session=None, turns=each.turns, tenant=0)
        for each in _single(4000, per_second, turn, random)
    ]
    return _workload("flood", sorted([*calm, *found], key=lambda each: each.at))


def two_floods(rate: float, random: Random) -> Workload:
    """Return 2,000 requests each of two tenants at twice the capacity each; the first one has but one connection."""
    names = itertools.count()

    def turn() -> Turn:
        return _turn((), random.randint(500, 1500), random.randint(20, 100), names)

    found = [
        Conversation(at=each.at, session=None, turns=each.turns, tenant=tenant, gateway=gateway)
        for tenant, gateway in ((0, 0), (1, None))
        for each in _single(2000, 85 * rate, turn, random)
    ]
    return _workload("two floods", sorted(found, key=lambda each: each.at))


def _workload(name: str, found: list[Conversation], cache_blocks: int = CACHE_BLOCKS) -> Workload:
    return Workload(
        name=name,
        conversations=tuple(found),
        block_size=BLOCK,
        cache_blocks=cache_blocks,
        tokens_per_second=TOKENS_PER_SECOND,
    )


def _count(usual: int, rate: float) -> int:
    """Return how many requests are drawn: with many replicas more, so that all of them are used for long enough."""
    return round(usual * max(1.0, rate / 2))


def _single(count: int, per_second: float, turn: Callable[[], Turn], random: Random) -> list[Conversation]:
    return [Conversation(at=at, session=None, turns=(turn(),)) for at in _arrivals(count, per_second, random)]


def _turn(head: tuple[int, ...], tail_tokens: int, output_tokens: int, names: Iterator[int]) -> Turn:
    prompt = len(head) * BLOCK + tail_tokens
    blocks = head + _blocks(names, (prompt + output_tokens) // BLOCK - len(head))
    return Turn(prompt_tokens=prompt, output_tokens=output_tokens, blocks=blocks)


def _arrivals(count: int, per_second: float, random: Random) -> Iterator[float]:
    """Yield times of a Poisson process."""
    at = 0.0
    for _ in range(count):
        at += random.expovariate(per_second)
        yield at


def _blocks(names: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(names, max(0, count)))

"""Measure pairs: how soon the attacker hears of a prompt that the victim has sent, and of one that nobody has.

In a pair the victim sends a new prompt; then the attacker asks for that one and for another new one, in random order,
each as often first as the other, and on one connection. So whatever comes just after the victim, or at a slow moment,
comes to both kinds alike.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from hearth.isolation_audit.errors import AuditFailed, LineBroken
from hearth.isolation_audit.http_probe import Answer, Line
from hearth.isolation_audit.prompts import CacheName, Phrasebook, Prompt

#: Several, because each belongs to one gateway process, and what one of them remembers another may not.
CONNECTIONS = 4
WARM_UPS = 5
#: Time for the victim's answer to be stored after its last byte was sent.
STORED_SECONDS = 0.002
#: A server that closes connections is not measured for ever.
MOST_BROKEN = 100
CONTROL_PAIRS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One key and its connections."""

    key: str
    lines: tuple[Line, ...]

    @staticmethod
    def at(api_base: str, key: str) -> Party:
        """Return the party; nothing is connected yet."""
        return Party(key=key, lines=tuple(Line(api_base, key) for _ in range(CONNECTIONS)))

    def close(self) -> None:
        for line in self.lines:
            line.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What came of one pair. ``connection`` is the number of the attacker's."""

    victim: Answer
    cached: Answer
    fresh: Answer
    cached_first: bool
    connection: int

    @property
    def is_hit(self) -> bool:
        """Say whether the attacker was given what the victim had."""
        same = bool(self.cached.answer_id) and self.cached.answer_id == self.victim.answer_id
        return same or self.cached.from_another


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure of one cache. ``until``: seconds of the monotonic clock after which it ends early."""

    cache: CacheName
    pairs: int
    control_pairs: int
    seed: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the next pair is to be."""

    kind: Literal["audit", "control"]
    cached_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The pairs of one cache, in the order in which they were measured. ``broken``: pairs that were made again."""

    audit: tuple[Pair, ...]
    control: tuple[Pair, ...]
    broken: int


class Stopwatch:
    """Measures pairs for one victim and one attacker; the control's victim is the attacker itself."""

    def __init__(self, phrasebook: Phrasebook, victim: Party, attacker: Party) -> None:
        self._phrasebook = phrasebook
        self._victim = victim
        self._attacker = attacker

    def warm_up(self, cache: CacheName) -> Answer:
        """Use every connection a few times; returns one answer, of a fresh prompt. Raises AuditFailed."""
        for line in (*self._victim.lines, *self._attacker.lines):
            for _ in range(WARM_UPS):
                prompt = self._phrasebook.prompt(cache)
                answer = line.insist(prompt.told, prompt.headers)
        return answer

    def measure(self, plan: Plan, tell: Callable[[int, int], None]) -> Measured:
        """Measure audit and control in random order; ``tell`` hears how many of how many are done.

        Raises AuditFailed when requests are refused or connections do not last.
        """
        chance = random.Random(plan.seed)
        order = turns(plan, chance)
        found: dict[str, list[Pair]] = {"audit": [], "control": []}
        broken = done = 0
        with _without_collections():
            while done < len(order) and time.monotonic() < plan.until:
                try:
                    found[order[done].kind].append(self._pair(plan.cache, order[done], chance))
                except LineBroken as error:
                    broken += 1
                    if broken > MOST_BROKEN:
                        raise AuditFailed(f"Connections do not last: {error}.", "Is the deployment well?") from error
                    continue
                done += 1
                tell(done, len(order))
        return Measured(audit=tuple(found["audit"]), control=tuple(found["control"]), broken=broken)

    def _pair(self, cache: CacheName, turn: Turn, chance: random.Random) -> Pair:
        known, unknown = self._phrasebook.prompt(cache), self._phrasebook.prompt(cache)
        number = chance.randrange(CONNECTIONS)
        victim = self._victim if turn.kind == "audit" else self._attacker
        told = chance.choice(victim.lines).ask(known.told, known.headers)
        time.sleep(STORED_SECONDS)
        order: Sequence[Prompt] = (known, unknown) if turn.cached_first else (unknown, known)
        line = self._attacker.lines[number]
        first, second = (line.ask(prompt.guessed, prompt.headers) for prompt in order)
        cached, fresh = (first, second) if turn.cached_first else (second, first)
        return Pair(victim=told, cached=cached, fresh=fresh, cached_first=turn.cached_first, connection=number)


def turns(plan: Plan, chance: random.Random) -> list[Turn]:
    """Return all pairs of a plan in random order.

    Of each kind as many have the cached prompt first as the other (one more, if their number is odd): an order that is
    left to chance lets the difference between a first and a second request pass for one between the prompts.
    """
    drawn = [Turn(kind="audit", cached_first=number % 2 == 0) for number in range(plan.pairs)]
    drawn += [Turn(kind="control", cached_first=number % 2 == 0) for number in range(plan.control_pairs)]
    chance.shuffle(drawn)
    return drawn


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector of this process from stopping a measurement."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

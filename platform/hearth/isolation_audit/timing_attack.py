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

from hearth.isolation_audit.errors import AuditFailed, ConnectionBroken
from hearth.isolation_audit.http_probe import HttpProbe, ProbeResponse
from hearth.isolation_audit.prompts import CacheName, Prompt, PromptGenerator

#: Several, because each belongs to one gateway process, and what one of them remembers another may not.
CONNECTIONS = 4
WARM_UPS = 5
#: Time for the victim's answer to be stored after its last byte was sent.
STORED_SECONDS = 0.002
#: A server that closes connections is not measured for ever.
MOST_BROKEN = 100
CONTROL_PAIRS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One key and its connections."""

    key: str
    probes: tuple[HttpProbe, ...]

    @staticmethod
    def at(api_base: str, key: str) -> Tenant:
        """Return the tenant; nothing is connected yet."""
        return Tenant(key=key, probes=tuple(HttpProbe(api_base, key) for _ in range(CONNECTIONS)))

    def close(self) -> None:
        for probe in self.probes:
            probe.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What came of one pair. ``connection`` is the number of the attacker's."""

    victim: ProbeResponse
    cached: ProbeResponse
    fresh: ProbeResponse
    cached_first: bool
    connection: int

    @property
    def is_hit(self) -> bool:
        """Say whether the attacker was given what the victim had."""
        same = bool(self.cached.response_id) and self.cached.response_id == self.victim.response_id
        return same or self.cached.is_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """How much to measure of one cache. ``until``: seconds of the monotonic clock after which it ends early."""

    cache: CacheName
    pairs: int
    control_pairs: int
    seed: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What the next pair is to be."""

    kind: Literal["audit", "control"]
    cached_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The pairs of one cache, in the order in which they were measured. ``broken``: pairs that were made again."""

    audit: tuple[Pair, ...]
    control: tuple[Pair, ...]
    broken: int


class Timer:
    """Measures pairs for one victim and one attacker; the control's victim is the attacker itself."""

    def __init__(self, generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> None:
        self._generator = generator
        self._victim = victim
        self._attacker = attacker

    def warm_up(self, cache: CacheName) -> ProbeResponse:
        """Use every connection a few times; returns one answer, of a fresh prompt. Raises AuditFailed."""
        for probe in (*self._victim.probes, *self._attacker.probes):
            for _ in range(WARM_UPS):
                prompt = self._generator.prompt(cache)
                answer = probe.send_with_retry(prompt.victim_request, prompt.headers)
        return answer

    def measure(self, plan: MeasurementPlan, tell: Callable[[int, int], None]) -> Measured:
        """Measure audit and control in random order; ``tell`` hears how many of how many are done.

        Raises AuditFailed when requests are refused or connections do not last.
        """
        chance = random.Random(plan.seed)
        order = trials(plan, chance)
        found: dict[str, list[Pair]] = {"audit": [], "control": []}
        broken = done = 0
        with _without_collections():
            while done < len(order) and time.monotonic() < plan.until:
                try:
                    found[order[done].kind].append(self._pair(plan.cache, order[done], chance))
                except ConnectionBroken as error:
                    broken += 1
                    if broken > MOST_BROKEN:
                        raise AuditFailed(f"Connections do not last: {error}.", "Is the deployment well?") from error
                    continue
                done += 1
                tell(done, len(order))
        return Measured(audit=tuple(found["audit"]), control=tuple(found["control"]), broken=broken)

    def _pair(self, cache: CacheName, trial: Trial, chance: random.Random) -> Pair:
        known, unknown = self._generator.prompt(cache), self._generator.prompt(cache)
        number = chance.randrange(CONNECTIONS)
        victim = self._victim if trial.kind == "audit" else self._attacker
        told = chance.choice(victim.probes).send(known.victim_request, known.headers)
        time.sleep(STORED_SECONDS)
        order: Sequence[Prompt] = (known, unknown) if trial.cached_first else (unknown, known)
        probe = self._attacker.probes[number]
        first, second = (probe.send(prompt.attacker_request, prompt.headers) for prompt in order)
        cached, fresh = (first, second) if trial.cached_first else (second, first)
        return Pair(victim=told, cached=cached, fresh=fresh, cached_first=trial.cached_first, connection=number)


def trials(plan: MeasurementPlan, chance: random.Random) -> list[Trial]:
    """Return all pairs of a plan in random order.

    Of each kind as many have the cached prompt first as the other (one more, if their number is odd): an order that is
    left to chance lets the difference between a first and a second request pass for one between the prompts.
    """
    drawn = [Trial(kind="audit", cached_first=number % 2 == 0) for number in range(plan.pairs)]
    drawn += [Trial(kind="control", cached_first=number % 2 == 0) for number in range(plan.control_pairs)]
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

"""Measure pairs: the time to the first byte of a prompt that the victim has sent, and of a new prompt.

In a pair the victim sends a new prompt. Then the attacker sends that prompt and another new one on one connection, in
random order, each first equally often. So the effects of the victim's request and of slow moments are the same for
both.
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

#: Several, because each connection reaches one gateway process, and each process has its own memory cache.
CONNECTIONS = 4
WARM_UPS = 5
#: Time for the gateway to store the victim's response after its last byte.
STORED_SECONDS = 0.002
#: Limit of repeated pairs, so that a server that closes connections ends the audit.
MOST_BROKEN = 100
CONTROL_PAIRS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant's key and its connections."""

    key: str
    probes: tuple[HttpProbe, ...]

    @staticmethod
    def at(api_base: str, key: str) -> Tenant:
        """Return the tenant. Opens no connection yet."""
        return Tenant(key=key, probes=tuple(HttpProbe(api_base, key) for _ in range(CONNECTIONS)))

    def close(self) -> None:
        for probe in self.probes:
            probe.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The responses of one pair. ``connection`` is the number of the attacker's connection."""

    victim: ProbeResponse
    cached: ProbeResponse
    fresh: ProbeResponse
    cached_first: bool
    connection: int

    @property
    def is_hit(self) -> bool:
        """Return whether the attacker got the victim's cached response."""
        same = bool(self.cached.response_id) and self.cached.response_id == self.victim.response_id
        return same or self.cached.is_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What to measure of one cache. ``until``: time of the monotonic clock, in seconds, at which it ends early."""

    cache: CacheName
    pairs: int
    control_pairs: int
    seed: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The kind and the order of one pair."""

    kind: Literal["audit", "control"]
    cached_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The pairs of one cache, in the order in which they were measured. ``broken``: pairs that were repeated."""

    audit: tuple[Pair, ...]
    control: tuple[Pair, ...]
    broken: int


class Timer:
    """Measures pairs of one victim and one attacker. In control pairs the attacker is its own victim."""

    def __init__(self, generator: PromptGenerator, victim: Tenant, attacker: Tenant) -> None:
        self._generator = generator
        self._victim = victim
        self._attacker = attacker

    def warm_up(self, cache: CacheName) -> ProbeResponse:
        """Send a few requests on every connection and return the last response. Raises AuditFailed."""
        for probe in (*self._victim.probes, *self._attacker.probes):
            for _ in range(WARM_UPS):
                prompt = self._generator.prompt(cache)
                response = probe.send_with_retry(prompt.victim_request, prompt.headers)
        return response

    def measure(self, plan: MeasurementPlan, report_progress: Callable[[int, int], None]) -> Measured:
        """Measure audit and control pairs in random order; calls ``report_progress(done, total)``.

        Raises AuditFailed when requests are refused or connections keep failing.
        """
        chance = random.Random(plan.seed)
        order = trials(plan, chance)
        found: dict[str, list[Pair]] = {"audit": [], "control": []}
        broken = done = 0
        with _without_garbage_collection():
            while done < len(order) and time.monotonic() < plan.until:
                try:
                    found[order[done].kind].append(self._pair(plan.cache, order[done], chance))
                except ConnectionBroken as error:
                    broken += 1
                    if broken > MOST_BROKEN:
                        raise AuditFailed(f"Too many connections failed: {error}.", "Check `hearth status`.") from error
                    continue
                done += 1
                report_progress(done, len(order))
        return Measured(audit=tuple(found["audit"]), control=tuple(found["control"]), broken=broken)

    def _pair(self, cache: CacheName, trial: Trial, chance: random.Random) -> Pair:
        known, unknown = self._generator.prompt(cache), self._generator.prompt(cache)
        number = chance.randrange(CONNECTIONS)
        victim = self._victim if trial.kind == "audit" else self._attacker
        of_victim = chance.choice(victim.probes).send(known.victim_request, known.headers)
        time.sleep(STORED_SECONDS)
        order: Sequence[Prompt] = (known, unknown) if trial.cached_first else (unknown, known)
        probe = self._attacker.probes[number]
        first, second = (probe.send(prompt.attacker_request, prompt.headers) for prompt in order)
        cached, fresh = (first, second) if trial.cached_first else (second, first)
        return Pair(victim=of_victim, cached=cached, fresh=fresh, cached_first=trial.cached_first, connection=number)


def trials(plan: MeasurementPlan, chance: random.Random) -> list[Trial]:
    """Return all pairs of a plan in random order.

    In each kind, both orders are equally frequent (one differs by 1 if the number is odd): with a purely random order,
    the difference between a first and a second request would look like a difference between the prompts.
    """
    drawn = [Trial(kind="audit", cached_first=number % 2 == 0) for number in range(plan.pairs)]
    drawn += [Trial(kind="control", cached_first=number % 2 == 0) for number in range(plan.control_pairs)]
    chance.shuffle(drawn)
    return drawn


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would pause a measurement."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

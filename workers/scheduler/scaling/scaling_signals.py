"""What engines report that calls for replicas beside tokens in flight: full KV caches, and a late first token.

Decided from facts alone: no database, no clock. The formulas, with an example, are in ``docs/operations/scaling.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.errors import BadValue

MOST_SECONDS = 3600.0
#: With one replica fewer, the rest must stay below this share of what they run at once, or it would queue again.
FULL = 0.8
ALLOWED = "ttft_seconds=1.5 and kv_usage=0.9"


_Seconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
_Share = Annotated[float, Meta(gt=0, le=1)]


class Objectives(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Signals that scaling follows; one that is left out is not followed."""

    ttft_seconds: Annotated[_Seconds | None, Meta(description="Mean until the first token, while requests queue.")] = (
        None
    )
    kv_usage: Annotated[_Share | None, Meta(description="Of the KV caches in use, on average.")] = None

    def __str__(self) -> str:
        """Return them as :func:`parse` reads them; empty for none."""
        given = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return " ".join(f"{name}={value:g}" for name, value in given if value is not None)


NONE = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the ready replicas of a deployment report. ``ttft_seconds`` is their mean of the last minute.

    ``kv_usage`` is the mean over them, ``most_requests`` what they run at once; None where an engine does not say.
    """

    ready: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    most_requests: int | None = None
    ttft_seconds: float | None = None


SILENT = EngineFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """How many replicas a signal calls for, and why."""

    wanted: int
    reason: str


def read(stored: object) -> Objectives:
    """Return the objectives in a row; none for None."""
    return NONE if stored is None else msgspec.convert(stored, Objectives)


def to_json(objectives: Objectives) -> dict[str, Any] | None:
    """Return the objectives for a row; None for none."""
    found: dict[str, Any] = msgspec.to_builtins(objectives)
    return found or None


def parse(text: str) -> Objectives:
    """Parse ``ttft_seconds=1.5 kv_usage=0.9``; an empty text is none. Raises BadValue."""
    given: dict[str, float] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name not in Objectives.__struct_fields__ or not equals:
            raise BadValue("objective", word, ALLOWED)
        try:
            given[name] = float(value)
        except ValueError:
            raise BadValue(name, value, ALLOWED) from None
    return make(given)


def make(given: dict[str, Any]) -> Objectives:
    """Return the objectives of these values. Raises BadValue."""
    for name, most in (("ttft_seconds", MOST_SECONDS), ("kv_usage", 1.0)):
        value = given.get(name)
        if value is not None and not 0 < value <= most:  # refuses NaN too
            raise BadValue(name, f"{value:g}", f"above 0, up to {most:g}")
    return Objectives(**given)


def signals(objectives: Objectives, engines: EngineFacts) -> list[Signal]:
    """Return what each followed signal calls for; nothing while no replica is ready."""
    if not engines.ready:
        return []
    found = (_of_kv(objectives.kv_usage, engines), _of_ttft(objectives.ttft_seconds, engines))
    return [each for each in found if each is not None]


def _of_kv(limit: float | None, engines: EngineFacts) -> Signal | None:
    """Return as many replicas as bring the mean to the limit, in proportion; so it also says when one is too many."""
    if limit is None:
        return None
    wanted = math.ceil(round(engines.ready * engines.kv_usage / limit, 6))
    reason = f"KV caches of {engines.ready} are {engines.kv_usage:.0%} full on average, {limit:.0%} is wanted"
    return Signal(wanted=wanted, reason=reason)


def _of_ttft(objective: float | None, engines: EngineFacts) -> Signal | None:
    """Return one more replica while the first token is late and requests queue in engines.

    Without a queue each prompt has its engine as soon as it arrives: it is long, or its cache is cold, and another
    replica would not compute it sooner. The present number is held while one replica fewer would queue again.
    """
    if objective is None:
        return None
    ttft = engines.ttft_seconds
    if ttft is not None and ttft > objective and engines.waiting:
        waiting = "1 request waits" if engines.waiting == 1 else f"{engines.waiting} requests wait"
        reason = f"TTFT was {ttft:.2f} s in the last minute, {objective:g} s is the objective, and {waiting} in engines"
        return Signal(wanted=engines.ready + 1, reason=reason)
    if engines.ready > 1 and engines.most_requests is not None:
        fewer = engines.most_requests * (engines.ready - 1) / engines.ready
        busy = engines.running + engines.waiting
        if busy > FULL * fewer:
            reason = f"{busy} requests would queue in engines with one replica fewer"
            return Signal(wanted=engines.ready, reason=reason)
    return None

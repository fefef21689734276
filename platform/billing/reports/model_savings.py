"""What the prediction cache and engines' prefix caches saved in a month, by model.

A request counts for one cache only: a hit or a coalesced response for the prediction cache, any other for the prefix
cache. Money is at the prices that the tenant pays. Engine time that prediction saved is what the original requests
took. That of the prefix cache is estimated: cached tokens times the time that engines needed for one more uncached
token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from billing.ledger.daily_charges import AVOIDED, Group
from billing.pricing.classes import WITHOUT_ENGINE

#: Fewer measured streams say nothing about a model's prefill.
FEWEST_STREAMS = 20
_NS_PER_MS = 10**6
_OF_STREAMS = ("streams", "stream_tokens", "stream_tokens_squared", "stream_ns", "stream_tokens_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSavings:
    """What both caches saved of one model; ``prediction_…`` covers hits and coalesced responses together.

    ``prefill_ns``: engine time per uncached prompt token, in nanoseconds; None: not measured.
    """

    model_name: str
    prediction_hits: int = 0
    coalesced_requests: int = 0
    prediction_tokens: int = 0
    prediction_engine_ms: int = 0
    prediction_pico: int = 0
    prefix_tokens: int = 0
    prefix_pico: int = 0
    prefill_ns: int | None = None

    @property
    def prefix_engine_ms(self) -> int | None:
        """The estimated engine time that the prefix cache saved; None: the prefill was not measured."""
        if not self.prefix_tokens:
            return 0
        return None if self.prefill_ns is None else self.prefix_tokens * self.prefill_ns // _NS_PER_MS

    @property
    def saved_pico(self) -> int:
        """What both saved together."""
        return self.prediction_pico + self.prefix_pico

    @property
    def is_any(self) -> bool:
        """Whether a cache saved anything."""
        return any(getattr(self, each.name) for each in fields(self) if each.name not in {"model_name", "prefill_ns"})


def by_model(groups: Iterable[Group]) -> tuple[ModelSavings, ...]:
    """Return the savings of a statement's groups, by name of the model; models without any are left out.

    A model's prefill is the slope of the time to the first token, without the queue, over uncached prompt tokens, of
    the month's own streams: what one more token took, without what every request takes.
    """
    found: dict[str, ModelSavings] = {}
    streams: dict[str, list[Group]] = {}
    for group in groups:
        before = found.get(group["model_name"], ModelSavings(model_name=group["model_name"]))
        found[before.model_name] = _added(before, group)
        if group["adjusts"] is None:
            streams.setdefault(before.model_name, []).append(group)
    return tuple(
        replace(found[name], prefill_ns=_prefill_ns(streams.get(name, ())))
        if found[name].prefix_tokens
        else found[name]
        for name in sorted(found)
        if found[name].is_any
    )


def _prefill_ns(groups: Sequence[Group]) -> int | None:
    """Return the slope of the least squares through these groups' streams; None: too few, or no positive one."""
    count, tokens, squared, ns, product = (sum(int(group[name]) for group in groups) for name in _OF_STREAMS)
    spread = count * squared - tokens * tokens
    if count < FEWEST_STREAMS or not spread:
        return None
    slope = Fraction(count * product - tokens * ns, spread)
    return round(slope) if slope > 0 else None


def _added(before: ModelSavings, group: Group) -> ModelSavings:
    charge = group["charge"]
    if charge in WITHOUT_ENGINE:
        requests = "prediction_hits" if charge == "prediction_hit" else "coalesced_requests"
        return replace(
            before,
            **{requests: getattr(before, requests) + group["requests"]},
            prediction_tokens=before.prediction_tokens + sum(int(group[name]) for name in AVOIDED),
            prediction_engine_ms=before.prediction_engine_ms + int(group["engine_ms"]),
            prediction_pico=before.prediction_pico + int(group["saved_prediction_pico"]),
        )
    if charge != "tokens":
        return before
    return replace(
        before,
        prefix_tokens=before.prefix_tokens + int(group["cached_prompt_tokens"]),
        prefix_pico=before.prefix_pico + int(group["saved_prefix_pico"]),
    )

"""The charge of one request and what the two caches saved. Pure, exact, in whole pico-dollars.

What is charged, by how the request ended (``state``) and its completion tokens:

    state           no completion token         at least one
    complete        prompt classes              prompt classes + completion
    client_gone     prompt classes (the engine  prompt classes + what was generated
                    did that work)              until the client disconnected
    refused         prompt classes: none if     prompt classes + what was delivered
                    the engine refused
    engine_error    nothing (*)                 prompt classes + what was delivered
    interrupted     nothing                     estimated prompt + what was streamed
    prediction hit  the fixed price of a hit, regardless of tokens

Of the prompt, tokens that the engine wrote to its cache are a class of their own, and of the completion those of
reasoning. Without a price they cost what the others of the prompt and the completion cost, so that a charge is the same
whether an engine reports them or not.

To that comes the price of a request (``request_pico``), once for each that an engine ran and that is charged for at
least one token: so not for one that is free, or that the engine refused. Hits and coalesced responses do not pay it.
All prices of what engines do are those of the tenant's priority (:meth:`Rates.at`).

(*) The prompt classes if its tokens are estimated: the engine did not fail, but worked until its time was over, and
nobody knows on how many tokens.

For a coalesced response, by whether any of it was sent:

    state           nothing sent                something sent
    complete        the fixed price             the fixed price
    client_gone     nothing                     the fixed price
    refused         nothing                     the fixed price (key revoked or budget spent)
    engine_error    nothing                     nothing: the price is for a response, and the platform failed
    interrupted     nothing                     nothing

Something was sent if there is a time to the first token. A hit and a coalesced response save the price of their three
avoided classes and of a request, minus the charge; cache writes and reasoning count as prompt and completion there. A
response that was cut short saves nothing: its full cost is unknown.

``refused`` in the middle of a response: its key was revoked or its budget spent. ``interrupted``: the gateway died.
docs/api.md has a table of which failures lead to which state and tokens. A charge of zero still names its price
version, so that it is distinguishable from a missing price; without a price there is no charge and the row waits as
unrated.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Protocol
from uuid import UUID

import msgspec

from billing.pricing.classes import LIST_PRICE_BP, PARENTS, WITHOUT_ENGINE, LineClass

#: States in which the platform failed: free until the first token.
FREE_BEFORE_FIRST_TOKEN = frozenset({"engine_error", "interrupted"})
_WITH_MULTIPLIER = frozenset({"low", "high"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices in pico-dollars, of a token or, as ``PER_REQUEST`` says, of a request; multipliers in basis points."""

    prompt_pico: int
    cached_prompt_pico: int
    completion_pico: int
    #: None: what the class in ``PARENTS`` costs.
    cache_write_pico: int | None = None
    reasoning_pico: int | None = None
    prediction_hit_pico: int = 0
    coalesced_pico: int = 0
    request_pico: int = 0
    #: What a tenant of this priority pays for what engines do; 10,000 is the list price.
    low_priority_bp: int = LIST_PRICE_BP
    high_priority_bp: int = LIST_PRICE_BP

    def at(self, priority: str) -> Rates:
        """Return the prices for a tenant of this priority, without multipliers.

        Those of hits and coalesced responses, which wait for no replica, stay.
        """
        if priority not in _WITH_MULTIPLIER:
            return self
        multiplier_bp = self.low_priority_bp if priority == "low" else self.high_priority_bp
        return self if multiplier_bp == LIST_PRICE_BP else _multiplied(self, multiplier_bp)

    def of(self, token_class: LineClass) -> int:
        """Return the price of one token, or of one request, of this class."""
        found: int | None = getattr(self, f"{token_class}_pico")
        return self.of(PARENTS[token_class]) if found is None else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An immutable price version."""

    version_id: UUID
    currency: str
    effective_from: datetime
    rates: Rates


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What a request costs. ``amount + saved`` is the cost without that cache."""

    amount_pico: int
    saved_prediction_pico: int = 0
    saved_prefix_pico: int = 0


class Metered(Protocol):
    """The fields of a usage record that rating reads. Cached and other prompt tokens are disjoint."""

    @property
    def state(self) -> str: ...
    @property
    def cache_result(self) -> str: ...
    @property
    def tokens_source(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def avoided_prompt_tokens(self) -> int: ...
    @property
    def avoided_cached_prompt_tokens(self) -> int: ...
    @property
    def avoided_completion_tokens(self) -> int: ...
    @property
    def ttft_ms(self) -> float | None: ...


FREE = Charge(amount_pico=0)


def rate(usage: Metered, rates: Rates) -> Charge:
    """Return the charge of one request at the prices of its priority.

    A saving is negative if the cached response costs more than a fresh one.
    """
    if usage.cache_result == "hit":
        return _without_engine(usage, rates, rates.prediction_hit_pico)
    if usage.cache_result == "coalesced":
        if usage.state == "complete":
            return _without_engine(usage, rates, rates.coalesced_pico)
        sent = usage.ttft_ms is not None and usage.state not in FREE_BEFORE_FIRST_TOKEN
        return Charge(amount_pico=rates.coalesced_pico) if sent else FREE
    if usage.state in FREE_BEFORE_FIRST_TOKEN and usage.completion_tokens == 0 and not _overran(usage):
        return FREE
    amount_pico = (
        usage.prompt_tokens * rates.prompt_pico
        + usage.cached_prompt_tokens * rates.cached_prompt_pico
        + usage.completion_tokens * rates.completion_pico
    )
    if usage.cache_write_tokens:
        amount_pico += usage.cache_write_tokens * (rates.of("cache_write") - rates.prompt_pico)
    if usage.reasoning_tokens:
        amount_pico += usage.reasoning_tokens * (rates.of("reasoning") - rates.completion_pico)
    if usage.prompt_tokens or usage.cached_prompt_tokens or usage.completion_tokens:
        amount_pico += rates.request_pico
    return Charge(
        amount_pico=amount_pico,
        saved_prefix_pico=usage.cached_prompt_tokens * (rates.prompt_pico - rates.cached_prompt_pico),
    )


def _overran(usage: Metered) -> bool:
    return usage.state == "engine_error" and usage.tokens_source == "estimated"


def _without_engine(usage: Metered, rates: Rates, amount_pico: int) -> Charge:
    """Return the charge of a response that needed no engine."""
    avoided = (
        usage.avoided_prompt_tokens * rates.prompt_pico
        + usage.avoided_cached_prompt_tokens * rates.cached_prompt_pico
        + usage.avoided_completion_tokens * rates.completion_pico
    )
    if usage.avoided_prompt_tokens or usage.avoided_cached_prompt_tokens or usage.avoided_completion_tokens:
        avoided += rates.request_pico
    return Charge(amount_pico=amount_pico, saved_prediction_pico=avoided - amount_pico)


@lru_cache(maxsize=4096)
def _multiplied(rates: Rates, multiplier_bp: int) -> Rates:
    """Return rates with the prices of what engines do multiplied, each rounded once, half to even, to a pico-dollar."""
    fixed = {f"{each}_pico" for each in WITHOUT_ENGINE}
    prices = {
        field.name: round(Fraction(getattr(rates, field.name) * multiplier_bp, LIST_PRICE_BP))
        for field in fields(rates)
        if field.name.endswith("_pico") and field.name not in fixed and getattr(rates, field.name) is not None
    }
    return replace(rates, **prices, low_priority_bp=LIST_PRICE_BP, high_priority_bp=LIST_PRICE_BP)

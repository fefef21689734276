"""What one request costs and what the two caches saved on it. Pure, exact, whole pico-dollars.

Charged, by how the request ended (``state``) and how many tokens came out of it:

    state           no completion token         at least one
    complete        prompt classes              prompt classes + completion
    client_gone     prompt classes (the engine  prompt classes + what was made until
                    did that work)              the client left
    refused         prompt classes: none where  prompt classes + what was delivered
                    the engine refused
    engine_error    nothing                     prompt classes + what was delivered
    interrupted     nothing                     estimated prompt + what was streamed
    prediction hit  the fixed price of a hit, whatever the tokens

An answer that was given as another request's was written (``coalesced``), by whether any of it was told:

    state           nothing told                something told
    complete        the fixed price             the fixed price
    client_gone     nothing                     the fixed price
    refused         nothing                     the fixed price (its key or its budget was at an end)
    engine_error    nothing                     nothing: the price is of an answer, and the platform gave none
    interrupted     nothing                     nothing

Something was told where there is a time to the first token. A hit and a coalesced answer save what their three avoided
classes cost at the request's price, less what is charged. One that was cut short saves nothing: what it would have
taken is not known.

``refused`` in the middle of an answer: its key or its budget was at an end. ``interrupted`` means that the gateway
itself died. Which moment leads to which state and to which tokens, streamed or not, is the table "What an answer costs
that does not come to its end" in docs/api.md. A charge of nothing still names its price version, so that it is
a decision and not a gap; where there is no price there is no charge at all and the row waits as unrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

#: States in which the platform failed: free until the first token.
FREE_BEFORE_FIRST_TOKEN = frozenset({"engine_error", "interrupted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Prices in pico-dollars: three per token; ``prediction_hit_pico`` and ``coalesced_pico`` per request."""

    prompt_pico: int
    cached_prompt_pico: int
    completion_pico: int
    prediction_hit_pico: int = 0
    coalesced_pico: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An immutable price version."""

    version_id: UUID
    currency: str
    effective_from: datetime
    rates: Rates


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """What a request costs. ``amount + saved`` is what it would have cost without that cache."""

    amount_pico: int
    saved_prediction_pico: int = 0
    saved_prefix_pico: int = 0


class Metered(Protocol):
    """What rating reads of a usage record. Prompt classes are disjoint."""

    @property
    def state(self) -> str: ...
    @property
    def cache_result(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
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
    """Return the charge of one request. A saving is negative where a cached answer is dearer than a fresh one."""
    if usage.cache_result == "hit":
        return _instead(usage, rates, rates.prediction_hit_pico)
    if usage.cache_result == "coalesced":
        if usage.state == "complete":
            return _instead(usage, rates, rates.coalesced_pico)
        told = usage.ttft_ms is not None and usage.state not in FREE_BEFORE_FIRST_TOKEN
        return Charge(amount_pico=rates.coalesced_pico) if told else FREE
    if usage.state in FREE_BEFORE_FIRST_TOKEN and usage.completion_tokens == 0:
        return FREE
    return Charge(
        amount_pico=usage.prompt_tokens * rates.prompt_pico
        + usage.cached_prompt_tokens * rates.cached_prompt_pico
        + usage.completion_tokens * rates.completion_pico,
        saved_prefix_pico=usage.cached_prompt_tokens * (rates.prompt_pico - rates.cached_prompt_pico),
    )


def _instead(usage: Metered, rates: Rates, amount_pico: int) -> Charge:
    """Return the charge of an answer that no engine had to be asked for."""
    avoided = (
        usage.avoided_prompt_tokens * rates.prompt_pico
        + usage.avoided_cached_prompt_tokens * rates.cached_prompt_pico
        + usage.avoided_completion_tokens * rates.completion_pico
    )
    return Charge(amount_pico=amount_pico, saved_prediction_pico=avoided - amount_pico)

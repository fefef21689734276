"""Tell with an answer what it costs, and what the prediction cache saved, where that is known before its first byte."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal
from uuid import UUID

import msgspec

from billing.pricing.prices import PriceTable
from billing.pricing.rating import Charge, Price, rate
from caching.entry import Entry
from gateway.protocols.endpoint import Usage
from gateway.request import Headers
from tenants.ids import TenantId

_PICO_PER_UNIT = 10**12


#: What is told of answers that no engine was asked for, by price version, how they came, and what they took.
_TOLD: dict[tuple[UUID, str, int, int, int], Headers] = {}
_MOST_TOLD = 4096


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer as rating reads it (``billing.pricing.rating.Metered``)."""

    cache_result: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    state: str = "complete"
    avoided_prompt_tokens: int = 0
    avoided_cached_prompt_tokens: int = 0
    avoided_completion_tokens: int = 0
    ttft_ms: float | None = None


def headers(prices: PriceTable, tenant_id: TenantId, model_name: str, request_id: UUID, usage: Usage) -> Headers:
    """Return the price version and the cost that the usage row will have; nothing while the model has no price."""
    price = prices.accepted(tenant_id, model_name, request_id)
    if price is None:
        return []
    answered = _Answered(
        cache_result="miss",
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )
    return _cost(price, rate(answered, price.rates))


def instead(
    prices: PriceTable,
    tenant_id: TenantId,
    model_name: str,
    request_id: UUID,
    entry: Entry,
    *,
    result: Literal["hit", "coalesced"] = "hit",
) -> Headers:
    """Return the same of an answer that another request got, and what it saved against asking an engine now.

    That is negative where the fixed price is the dearer one.
    """
    price = prices.accepted(tenant_id, model_name, request_id)
    if price is None:
        return []
    prompt, cached, completion = entry.prompt_tokens, entry.cached_prompt_tokens, entry.completion_tokens
    name = (price.version_id, result, prompt, cached, completion)
    told = _TOLD.get(name)
    if told is None:
        if len(_TOLD) >= _MOST_TOLD:
            _TOLD.clear()
        told = _TOLD[name] = _instead(price, entry, result)
    return told


def _instead(price: Price, entry: Entry, result: Literal["hit", "coalesced"]) -> Headers:
    answered = _Answered(
        cache_result=result,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        completion_tokens=0,
        avoided_prompt_tokens=entry.prompt_tokens,
        avoided_cached_prompt_tokens=entry.cached_prompt_tokens,
        avoided_completion_tokens=entry.completion_tokens,
    )
    charge = rate(answered, price.rates)
    return [*_cost(price, charge), (_named("saved", price.currency), _units(charge.saved_prediction_pico))]


def _cost(price: Price, charge: Charge) -> Headers:
    return [
        (_named("cost", price.currency), _units(charge.amount_pico)),
        (b"x-price-version", _version(price.version_id)),
    ]


@lru_cache(maxsize=256)
def _named(amount: str, currency: str) -> bytes:
    return f"x-{amount}-{currency.lower()}".encode()


@lru_cache(maxsize=4096)
def _version(version_id: UUID) -> bytes:
    return str(version_id).encode()


def _units(pico: int) -> bytes:
    """Return an amount in whole units of its currency, exact to the last of twelve decimals."""
    return b"%s%d.%012d" % (b"-" if pico < 0 else b"", *divmod(abs(pico), _PICO_PER_UNIT))

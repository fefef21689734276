"""Response headers for the cost, and what the prediction cache saved, if known before the first byte."""

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
from tenants.snapshot.snapshot import Caller

_PICO_PER_UNIT = 10**12
#: The headers of responses that no engine generated, by price version, priority, cache result and tokens.
_CACHED: dict[tuple[UUID, str, str, int, int, int], Headers] = {}
_MAX_CACHED = 4096


class _RatedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response as rating reads it (``billing.pricing.rating.Metered``)."""

    cache_result: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    state: str = "complete"
    tokens_source: str = "engine"
    avoided_prompt_tokens: int = 0
    avoided_cached_prompt_tokens: int = 0
    avoided_completion_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    ttft_ms: float | None = None


def headers(prices: PriceTable, caller: Caller, model_name: str, request_id: UUID, usage: Usage) -> Headers:
    """Return the price version and the cost of the future usage row; nothing while the model has no price."""
    price = prices.accepted(caller.tenant_id, model_name, request_id)
    if price is None:
        return []
    rated = _RatedResponse(
        cache_result="miss",
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    return _cost(price, rate(rated, price.rates.at(caller.policy.priority)))


def headers_without_engine(
    prices: PriceTable,
    caller: Caller,
    model_name: str,
    request_id: UUID,
    entry: Entry,
    *,
    result: Literal["hit", "coalesced"] = "hit",
) -> Headers:
    """Return the same headers for another request's response, and what it saved against running on an engine now.

    The saving is negative if the fixed price is higher.
    """
    price = prices.accepted(caller.tenant_id, model_name, request_id)
    if price is None:
        return []
    priority = caller.policy.priority
    prompt, cached, completion = entry.prompt_tokens, entry.cached_prompt_tokens, entry.completion_tokens
    name = (price.version_id, priority, result, prompt, cached, completion)
    found = _CACHED.get(name)
    if found is None:
        if len(_CACHED) >= _MAX_CACHED:
            _CACHED.clear()
        found = _CACHED[name] = _headers_without_engine(price, priority, entry, result)
    return found


def _headers_without_engine(price: Price, priority: str, entry: Entry, result: Literal["hit", "coalesced"]) -> Headers:
    rated = _RatedResponse(
        cache_result=result,
        prompt_tokens=0,
        cached_prompt_tokens=0,
        completion_tokens=0,
        avoided_prompt_tokens=entry.prompt_tokens,
        avoided_cached_prompt_tokens=entry.cached_prompt_tokens,
        avoided_completion_tokens=entry.completion_tokens,
    )
    charge = rate(rated, price.rates.at(priority))
    return [*_cost(price, charge), (_header_name("saved", price.currency), _units(charge.saved_prediction_pico))]


def _cost(price: Price, charge: Charge) -> Headers:
    return [
        (_header_name("cost", price.currency), _units(charge.amount_pico)),
        (b"x-price-version", _version(price.version_id)),
    ]


@lru_cache(maxsize=256)
def _header_name(amount: str, currency: str) -> bytes:
    return f"x-{amount}-{currency.lower()}".encode()


@lru_cache(maxsize=4096)
def _version(version_id: UUID) -> bytes:
    return str(version_id).encode()


def _units(pico: int) -> bytes:
    """Return an amount in units of its currency, with twelve decimals, exact."""
    return b"%s%d.%012d" % (b"-" if pico < 0 else b"", *divmod(abs(pico), _PICO_PER_UNIT))

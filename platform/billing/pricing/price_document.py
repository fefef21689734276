"""A price as clients read it: in units of its currency, for a million tokens or a request, as exact text."""

from __future__ import annotations

from typing import Any

from billing.pricing.amounts import PICO
from billing.pricing.classes import LineClass
from billing.pricing.rating import Price

TOKEN_CLASSES: tuple[LineClass, ...] = ("prompt", "cached_prompt", "completion", "cache_write", "reasoning")
REQUEST_CLASSES: tuple[LineClass, ...] = ("request", "prediction_hit", "coalesced")
PER_TOKENS = 10**6


def document(price: Price, priority: str) -> dict[str, Any]:
    """Return what a tenant of this priority pays, by class. A class without a price has that of its parent."""
    rates = price.rates.at(priority)
    return {
        "currency": price.currency,
        "per_million_tokens": {each: decimal_text(rates.of(each) * PER_TOKENS) for each in TOKEN_CLASSES},
        "per_request": {each: decimal_text(rates.of(each)) for each in REQUEST_CLASSES},
    }


def decimal_text(pico: int) -> str:
    """Return pico-units in units of the currency, exact and without trailing zeros, such as ``0.15``."""
    whole, rest = divmod(pico, PICO)
    return f"{whole}.{rest:012d}".rstrip("0").rstrip(".")

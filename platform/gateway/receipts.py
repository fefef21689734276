"""Tell with an answer what it costs, where that is known before its first byte."""

from __future__ import annotations

from uuid import UUID

import msgspec
from django.utils import timezone

from billing.prices import PriceTable
from billing.rating import rate
from gateway.messages import Headers
from gateway.wire.usage import Usage
from tenants.ids import TenantId, created_at

_PICO_PER_UNIT = 10**12


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A complete answer as rating reads it (``billing.rating.Metered``)."""

    cache_result: str
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    state: str = "complete"
    avoided_prompt_tokens: int = 0
    avoided_completion_tokens: int = 0


def headers(
    prices: PriceTable, tenant_id: TenantId, model_name: str, request_id: UUID, usage: Usage, *, hit: bool = False
) -> Headers:
    """Return the price version and the cost that the usage row will have; nothing while the model has no price."""
    price = prices.charged(tenant_id, model_name, created_at(request_id), timezone.now())
    if price is None:
        return []
    answered = _Answered(
        cache_result="hit" if hit else "miss",
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )
    cost = rate(answered, price.rates).amount_pico
    return [
        (f"x-cost-{price.currency.lower()}".encode(), _units(cost)),
        (b"x-price-version", str(price.version_id).encode()),
    ]


def _units(pico: int) -> bytes:
    """Return an amount in whole units of its currency, exact to the last of twelve decimals."""
    return b"%d.%012d" % divmod(pico, _PICO_PER_UNIT)

"""Estimates of a request before it runs: tokens for limits, the cost for budgets.

The cost is an upper bound, to the pico-dollar, at the price that rating will use. A prompt has at most as many tokens
as its body has bytes, because byte-pair tokenizers fall back to single bytes, plus those of a chat template; and at
most the model's context. All of them are priced at the highest of the prompt prices. A completion is reserved at its
full length, at the higher of its price and that of reasoning. A stream whose events carry token counts is reserved
STEP_TOKENS per choice at a time (:meth:`CostReservation.next_pico`).
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from billing.pricing.prices import PriceTable
from billing.pricing.rating import Metered, Rates, rate
from catalogue.registry import ServedModel
from gateway.errors import Unavailable
from gateway.protocols import body_facts
from gateway.protocols.request_body import Call
from tenants.snapshot.snapshot import Caller

#: Completion tokens reserved if the request sets no limit.
DEFAULT_NEW_TOKENS = 256
#: English text has about four bytes per token. The reservation is corrected by what the engine reports.
BYTES_PER_TOKEN = 4
#: Tokens that a chat template adds: its system prompt, instructions for tools, marks around messages.
TEMPLATE_TOKENS = 256
#: Tokens per choice of a stream that are reserved at a time. The next are reserved while half of them are left: at 100
#: tokens/s that is more than a second, and a command to Redis takes 50 ms at most.
STEP_TOKENS = 256


class CostReservation(msgspec.Struct, kw_only=True):
    """What a request under a hard budget holds in advance."""

    #: Of the tenant's priority.
    rates: Rates
    prompt_tokens: int
    #: Completion tokens of all choices: held until now, added per step, and the most that may be generated.
    paid_tokens: int
    step_tokens: int
    most_tokens: int
    #: Whether it may receive a stored response, and another request's, at their fixed prices.
    may_hit: bool = True
    may_follow: bool = True

    @property
    def held_pico(self) -> int:
        """The amount held until now: at least the fixed price of a response that it may receive instead."""
        rates = self.rates
        dearer = max(rates.prompt_pico, rates.cached_prompt_pico, rates.of("cache_write"))
        reserved = self.prompt_tokens * dearer
        reserved += self.paid_tokens * max(rates.completion_pico, rates.of("reasoning"))
        if self.prompt_tokens:
            reserved += rates.request_pico
        return max(
            reserved,
            rates.prediction_hit_pico if self.may_hit else 0,
            rates.coalesced_pico if self.may_follow else 0,
        )

    @property
    def hit_pico(self) -> int:
        """The price of a cache hit."""
        return self.rates.prediction_hit_pico

    def next_pico(self, streamed_tokens: int) -> int:
        """Return the amount to add (:meth:`Reservation.extend`) before further tokens are sent; 0 if none is needed.

        It counts as held from now on: if the extension is rejected, the stream ends.
        """
        left = self.paid_tokens - streamed_tokens
        more = min(self.step_tokens, self.most_tokens - self.paid_tokens)
        if more <= 0 or 2 * left > self.step_tokens:
            return 0
        before = self.held_pico
        self.paid_tokens += more
        return self.held_pico - before

    def amount_pico(self, end: Metered) -> int:
        """Return the cost of the request, exactly as its usage row will be rated."""
        return rate(end, self.rates).amount_pico


def reserved_tokens(call: Call, model: ServedModel, body_bytes: int) -> int:
    """Return the tokens that limits reserve for prompt and completions; 0 for an endpoint that is not metered."""
    if not call.endpoint.metered:
        return 0
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    prompt = min(max(1, body_bytes // BYTES_PER_TOKEN), model.context_length_tokens)
    return prompt + new_tokens * call.choices


def cost_reservation(
    prices: PriceTable,
    caller: Caller,
    call: Call,
    model: ServedModel,
    body_bytes: int,
    request_id: UUID,
    *,
    runs: bool = True,
) -> CostReservation | None:
    """Return what the request holds from hard budgets; None if it has none, or is not metered.

    ``runs`` False: no engine runs it, so it takes no token. Raises Unavailable for a model without a price, whose cost
    has no bound.
    """
    if not caller.budgets or not call.endpoint.metered:
        return None
    if not any(budget.covers(model.name) for budget in caller.budgets):
        return None
    price = prices.accepted(caller.tenant_id, model.name, request_id)
    if price is None:
        raise price_missing(model.name)
    rates = price.rates.at(caller.policy.priority)
    if not runs:
        return CostReservation(rates=rates, prompt_tokens=0, paid_tokens=0, step_tokens=0, most_tokens=0)
    new_tokens = min(call.max_new_tokens or model.context_length_tokens, model.context_length_tokens)
    step = STEP_TOKENS * call.choices
    most = new_tokens * call.choices
    return CostReservation(
        rates=rates,
        prompt_tokens=_most_prompt_tokens(call, model, body_bytes),
        paid_tokens=min(step, most) if call.stream and call.endpoint.token_counts(call.body) is not None else most,
        step_tokens=step,
        most_tokens=most,
    )


def price_missing(model_name: str) -> Unavailable:
    """Return the error for a request under a hard budget to a model without a price."""
    return Unavailable(
        f"The model {model_name!r} has no price, so a hard budget cannot cover it. The operator must set one.",
        "price_missing",
        "model",
        headers=[(b"x-should-retry", b"false")],
    )


def _most_prompt_tokens(call: Call, model: ServedModel, body_bytes: int) -> int:
    context = model.context_length_tokens
    if not call.choices:  # an embedding request has many texts
        return body_bytes + TEMPLATE_TOKENS
    if "prompt" in call.body:  # each of several prompts has its own context
        return min(body_bytes + TEMPLATE_TOKENS, context * call.choices)
    if body_facts.has_media(call.body) if call.facts is None else call.facts.has_media:
        return context
    return min(body_bytes + TEMPLATE_TOKENS, context)

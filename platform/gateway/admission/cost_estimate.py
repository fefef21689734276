"""What a request may take before anybody knows what it took: tokens for limits, money for budgets.

Money is an upper bound, to the pico-dollar, at the price that rating will use. A prompt has no more tokens than its
body has bytes, as every tokenizer of byte pairs falls back to single bytes, plus what a chat template adds; and no more
than the model's context. Each is taken at the dearer of the two prompt prices. An answer is paid for beforehand at its
full length; a stream whose events say how many tokens they carry, STEP_TOKENS for each choice at a time
(:meth:`CostReservation.next_pico`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec

from billing.pricing.prices import PriceTable
from billing.pricing.rating import Metered, Price, rate
from catalogue.registry import ServedModel
from gateway.errors import Unavailable
from gateway.protocols.request_body import Call
from tenants.snapshot import Caller

#: Tokens counted for an answer whose length the client left open.
DEFAULT_NEW_TOKENS = 256
#: English text has about four bytes to a token; what is reserved by this is settled by what the engine reports.
BYTES_PER_TOKEN = 4
#: What a chat template adds to a prompt of its own: a system prompt, how to call tools, marks around messages.
TEMPLATE_TOKENS = 256
#: Of one choice of a stream that are paid for at a time. The next are asked for while half of them are left: at 100
#: tokens/s that is more than a second, and Redis answers in 50 ms or not at all.
STEP_TOKENS = 256
#: Kinds of parts of a message whose tokens are in the body; any other may be an image of a few bytes' address.
_TEXT_PARTS = frozenset(
    {"text", "input_text", "output_text", "summary_text", "reasoning_text", "refusal", "thinking", "redacted_thinking"}
    | {"reasoning", "message", "tool_use", "tool_result", "function_call", "function_call_output"}
)


class CostReservation(msgspec.Struct, kw_only=True):
    """What a request under a hard budget has paid for beforehand."""

    price: Price
    prompt_tokens: int
    #: Completion tokens of all choices: paid for until now, taken at a time, and all that may be written.
    paid_tokens: int
    step_tokens: int
    most_tokens: int

    @property
    def held_pico(self) -> int:
        """What is held until now: no less than what another request's answer costs, which it may be given."""
        rates = self.price.rates
        dearer = max(rates.prompt_pico, rates.cached_prompt_pico)
        asked = self.prompt_tokens * dearer + self.paid_tokens * rates.completion_pico
        return max(asked, rates.prediction_hit_pico, rates.coalesced_pico)

    @property
    def hit_pico(self) -> int:
        """What a stored answer costs."""
        return self.price.rates.prediction_hit_pico

    def next_pico(self, streamed_tokens: int) -> int:
        """Return what to hold more (:meth:`Ticket.extend`) before further tokens are passed on; 0 while it lasts.

        What is returned counts as held from now on: when the extension is refused, the stream ends.
        """
        left = self.paid_tokens - streamed_tokens
        more = min(self.step_tokens, self.most_tokens - self.paid_tokens)
        if more <= 0 or 2 * left > self.step_tokens:
            return 0
        before = self.held_pico
        self.paid_tokens += more
        return self.held_pico - before

    def amount_pico(self, end: Metered) -> int:
        """Return what the request cost, exactly as its row will be rated."""
        return rate(end, self.price.rates).amount_pico


def reserved_tokens(call: Call, model: ServedModel, body_bytes: int) -> int:
    """Return how many tokens a limit reserves for the prompt and the answers; none for what costs none."""
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
    """Return what the request needs of hard budgets; None where none bounds it, or it costs nothing.

    ``runs`` False: no engine is asked, so that it takes no token. Raises Unavailable for a model without a price: what
    it costs cannot be bounded.
    """
    if not caller.budgets or not call.endpoint.metered:
        return None
    for budget in caller.budgets:
        if budget.model_name in {"", model.name}:
            break
    else:
        return None
    price = prices.accepted(caller.tenant_id, model.name, request_id)
    if price is None:
        raise price_missing(model.name)
    if not runs:
        return CostReservation(price=price, prompt_tokens=0, paid_tokens=0, step_tokens=0, most_tokens=0)
    new_tokens = min(call.max_new_tokens or model.context_length_tokens, model.context_length_tokens)
    step = STEP_TOKENS * call.choices
    most = new_tokens * call.choices
    return CostReservation(
        price=price,
        prompt_tokens=_most_prompt_tokens(call, model, body_bytes),
        paid_tokens=min(step, most) if call.stream and call.endpoint.token_counts(call.body) is not None else most,
        step_tokens=step,
        most_tokens=most,
    )


def price_missing(model_name: str) -> Unavailable:
    """Return the answer to a request under a hard budget for what nobody has priced."""
    return Unavailable(
        f"{model_name!r} has no price, so that what it costs cannot be held to a budget.",
        "price_missing",
        "model",
        headers=[(b"x-should-retry", b"false")],
    )


def _most_prompt_tokens(call: Call, model: ServedModel, body_bytes: int) -> int:
    context = model.context_length_tokens
    if "prompt" in call.body:  # of several prompts each has a context of its own
        return min(body_bytes + TEMPLATE_TOKENS, context * call.choices)
    if not call.choices:  # embeddings take many texts
        return body_bytes + TEMPLATE_TOKENS
    if _has_media([call.body.get(name) for name in ("messages", "input", "system")]):
        return context
    return min(body_bytes + TEMPLATE_TOKENS, context)


def _has_media(value: Any) -> bool:
    """Say whether a message, or any part in it, may be other than text."""
    if isinstance(value, dict):
        kind = value.get("type", "text")
        if not isinstance(kind, str) or kind not in _TEXT_PARTS:
            return True
        inner: Iterable[Any] = (value.get("content"), value.get("output"), value.get("summary"))
    elif isinstance(value, list):
        inner = value
    else:
        return False
    for each in inner:  # any() with a generator takes three times as long
        kind = type(each)
        if kind is dict and len(each) == 2 and type(each.get("content")) is str and "role" in each:
            continue  # most messages
        if (kind is dict or kind is list) and _has_media(each):
            return True
    return False

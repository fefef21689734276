"""What a request may take before anybody knows what it took: tokens for limits, money for budgets."""

from __future__ import annotations

from catalogue.registry import ServedModel
from gateway.schemas import Call

#: Tokens counted for an answer whose length the client left open.
DEFAULT_NEW_TOKENS = 256
#: English text has about four bytes to a token; what is reserved by this is settled by what the engine reports.
BYTES_PER_TOKEN = 4


def reserved_tokens(call: Call, model: ServedModel, body_bytes: int) -> int:
    """Return how many tokens a limit reserves for the prompt and the answers; none for what costs none."""
    if not call.wire.metered:
        return 0
    new_tokens = min(call.max_new_tokens or DEFAULT_NEW_TOKENS, model.context_length_tokens)
    prompt = min(max(1, body_bytes // BYTES_PER_TOKEN), model.context_length_tokens)
    return prompt + new_tokens * call.choices

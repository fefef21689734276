"""Estimate what an engine wrote of a response that never arrived, because it took too long or was too large.

The engine worked, so the tenant pays, although no token can be counted (docs/decisions/0012). The estimate is low on
purpose, follows from documented numbers alone, and never exceeds what the request allowed the engine to write.
"""

from __future__ import annotations

from catalogue.registry import ServedModel
from gateway.protocols.request_body import Call
from gateway.upstream.connection import ReadTimeout, ResponseTooLarge

#: Tokens of one choice. An engine that is busy still writes more than this to each.
TOKENS_PER_SECOND = 10
#: The longest that a token becomes in a response: with its 20 most likely alternatives.
BYTES_PER_TOKEN = 2048
#: So many times as long with the 128 alternatives that a request may list.
LISTED_LOGPROBS = 8


def completion_tokens(call: Call, model: ServedModel, failure: ReadTimeout | ResponseTooLarge) -> int:
    """Return the estimated completion tokens of all choices; 0 for a stream, whose tokens are counted on arrival."""
    if call.stream:
        return 0
    context = model.context_length_tokens
    most = min(call.max_new_tokens or context, context) * call.choices
    if isinstance(failure, ReadTimeout):
        return min(most, int(failure.seconds * TOKENS_PER_SECOND) * call.choices)
    each = BYTES_PER_TOKEN * (LISTED_LOGPROBS if call.body.get("logprob_token_ids") else 1)
    return min(most, failure.size_bytes // each)

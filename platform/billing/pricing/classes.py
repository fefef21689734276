"""What a model's usage is priced by: classes of tokens, and of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

LineClass = Literal[
    "prompt", "cache_write", "cached_prompt", "completion", "reasoning", "request", "prediction_hit", "coalesced"
]
#: Classes that cost what another class costs unless they have a price of their own.
PARENTS: Mapping[LineClass, LineClass] = {"cache_write": "prompt", "reasoning": "completion"}
#: Classes of requests that need no engine.
WITHOUT_ENGINE: frozenset[LineClass] = frozenset({"prediction_hit", "coalesced"})
#: Classes that are priced per request.
PER_REQUEST: frozenset[LineClass] = WITHOUT_ENGINE | {"request"}
#: The class of a tenant in queues, with a price of its own. In the order in which statements list them.
Priority = Literal["standard", "low", "high"]
#: A multiplier of 1, in basis points.
LIST_PRICE_BP = 10_000

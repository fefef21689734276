"""What a model's usage is priced by: classes of tokens, and of requests."""

from __future__ import annotations

from typing import Literal

LineClass = Literal["prompt", "cached_prompt", "completion", "request", "prediction_hit", "coalesced"]
#: Classes of requests that need no engine.
WITHOUT_ENGINE: frozenset[LineClass] = frozenset({"prediction_hit", "coalesced"})
#: Classes that are priced per request.
PER_REQUEST: frozenset[LineClass] = WITHOUT_ENGINE | {"request"}
#: The class of a tenant in queues, with a price of its own. In the order in which statements list them.
Priority = Literal["standard", "low", "high"]
#: A multiplier of 1, in basis points.
LIST_PRICE_BP = 10_000

"""What a model's usage is priced by: classes of tokens, and of requests that need no engine."""

from __future__ import annotations

from typing import Literal

LineClass = Literal["prompt", "cached_prompt", "completion", "prediction_hit", "coalesced"]
#: Classes that are priced per request.
PER_REQUEST: frozenset[LineClass] = frozenset({"prediction_hit", "coalesced"})

"""What each client calls and asks for. HEARTH_API_BASE, HEARTH_API_KEY and HEARTH_MODEL say where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel

BASE_URL, API_KEY, MODEL = (os.environ[f"HEARTH_{name}"] for name in ("API_BASE", "API_KEY", "MODEL"))
#: Anthropic's clients add the path themselves.
ROOT_URL = BASE_URL.removesuffix("/v1")
#: The engine answers each request, never the cache.
FRESH = {"cache-control": "no-cache"}
PROMPT = "Hello there"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
#: The tiny model puts blanks around a call, which takes that many.
MAX_TOKENS = 500


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


def print_answers(cases: Mapping[str, Callable[[], object]]) -> None:
    """Run each case and print what the client understood, by name of the case."""
    print(json.dumps({name: case() for name, case in cases.items()}))

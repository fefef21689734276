"""How lines and units are called on invoices."""

from __future__ import annotations

from billing.pricing.classes import LineClass
from billing.reports.statements import Line

_CLASSES: dict[LineClass, str] = {
    "prompt": "uncached prompt tokens",
    "cache_write": "prompt tokens written to the prefix cache",
    "cached_prompt": "cached prompt tokens",
    "completion": "completion tokens",
    "reasoning": "reasoning tokens",
    "request": "requests that engines ran",
    "prediction_hit": "answers from the prediction cache",
    "coalesced": "answers shared with identical requests",
}


def usage(line: Line) -> str:
    """Return what a line of usage is for."""
    priority = "" if line.priority == "standard" else f", {line.priority} priority"
    late = f", late usage of {line.adjusts_month}" if line.adjusts_month else ""
    return f"{line.model_name}: {_CLASSES[line.token_class]}{priority}{late}"


def terms(plan: str | None, text: str) -> str:
    """Return what a line of the plan's terms is for."""
    return f"Plan {plan}: {text}" if plan else text

"""Advice as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from portal.formats import money
from portal.reporting.advice.advisor import Advice

CSV_HEADER = (
    "kind",
    "reason",
    "project",
    "key",
    "model",
    "requests",
    "of_requests",
    "shared_tokens",
    "behind_tokens",
    "tokens_per_month",
    "saved_per_month",
    "advice",
)


def csv_rows(found: Iterable[Advice]) -> Iterator[tuple[str, ...]]:
    """Yield the rows: whole tokens, money with twelve decimals; a cell without a value is empty."""
    for each in found:
        yield (
            each.kind,
            each.reason,
            each.traffic.project,
            each.traffic.key,
            each.traffic.model_name,
            str(each.requests),
            str(each.traffic.requests),
            "" if each.shared_tokens is None else str(each.shared_tokens),
            "" if each.behind_tokens is None else str(each.behind_tokens),
            str(each.tokens_per_month),
            money.exact(each.pico_per_month),
            f"{each.title}. {each.text}",
        )

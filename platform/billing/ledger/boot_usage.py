"""What the requests of each engine process took, in the units of its counters, kept by the drain with the rows.

vLLM counts a prompt at its first token, once for each sequence; it counts tokens as it writes them, and sequences as
they end. It never counts a sequence that its client gave up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from billing.ledger import bulk_insert
from billing.ledger.usage_rows import UsageRow

SUMS = (
    *("requests", "sequences", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "shared_requests"),
    *("cut_requests", "cut_sequences", "cut_prompt_tokens", "cut_completion_tokens"),
)
_KEYS = ("replica_id", "generation", "purpose")
_COLUMNS = ", ".join((*_KEYS, *SUMS))
_Document = msgspec.defstruct("_Document", (*_KEYS, *SUMS))
_ADD = f"""
    INSERT INTO billing_bootusage ({_COLUMNS})
    SELECT {_COLUMNS} FROM json_populate_recordset(NULL::billing_bootusage, %s)
    ON CONFLICT ({", ".join(_KEYS)}) DO UPDATE
    SET {", ".join(f"{name} = billing_bootusage.{name} + EXCLUDED.{name}" for name in SUMS)}
"""


def add(rows: Iterable[UsageRow]) -> None:
    """Add new rows to the sums of their engine processes, always in the same order."""
    groups: dict[tuple[UUID, int, str], list[tuple[int, ...]]] = {}
    for row in rows:
        if row.replica_id is not None and row.replica_generation:
            key = (row.replica_id, row.replica_generation, row.purpose)
            groups.setdefault(key, []).append(_figures(row))
    if groups:
        bulk_insert.execute(_ADD, [_Document(*key, *_sum(groups[key])) for key in sorted(groups)])


def is_exact(row: UsageRow) -> bool:
    """Return whether the row has the engine's own count, or the engine refused the request before it ran."""
    return row.purpose == "lost" or (row.tokens_source == "engine" and row.state in {"complete", "refused"})


def _sum(rows: Sequence[tuple[int, ...]]) -> Iterable[int]:
    return map(sum, zip(*rows, strict=True))


def _figures(row: UsageRow) -> tuple[int, ...]:
    """Return what a row adds, in the order of SUMS."""
    ran = row.state == "complete"
    sequences, shared = row.sequences, int(ran and row.sequences > 1)
    prompt = (row.prompt_tokens + row.cached_prompt_tokens) * row.prompt_copies
    if is_exact(row):
        counted = (prompt, row.cached_prompt_tokens, row.completion_tokens)
        return (1, sequences if ran else 0, *counted, shared, 0, 0, 0, 0)
    return (0, 0, 0, 0, 0, 0, 1, sequences, prompt, row.completion_tokens)

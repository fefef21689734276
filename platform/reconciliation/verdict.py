"""Judge one engine process: whether its counters and the usage of its requests agree. Pure.

Exact rows have the engine's own counts. A request that was cut short (its client left, the engine failed, a process
died) has what was passed on; the engine may have counted more, at most a whole context for each sequence, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["running", "settling", "equal", "bounded", "lost", "gap", "partial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens and sequences, as engines count them. ``prompt`` includes the cached ones; ``cached`` None: unknown."""

    prompt: int = 0
    completion: int = 0
    sequences: int = 0
    cached: int | None = None

    @property
    def tokens(self) -> int:
        """Both classes together."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a process.

    ``used``: the exact rows; ``lost``: what was recorded as lost earlier. ``cut``: what was recorded of requests that
    were cut short. ``late``: the exact rows that ended about or after the last scrape. ``open_sequences`` ran at the
    last scrape.
    """

    counted: Counts
    used: Counts
    cut: Counts = Counts()
    late: Counts = Counts()
    lost: Counts = Counts()
    open_sequences: int = 0
    context_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result. ``gap_tokens`` is signed: negative where usage has more than the engine counted."""

    state: State
    gap_tokens: int = 0
    unattributed_tokens: int = 0
    allowed_tokens: int = 0
    lost: Counts = Counts()
    note: str = ""


def of_orderly(found: Evidence) -> Verdict:
    """Judge a process whose counters were read after its last request."""
    counted, used, cut = found.counted, found.used, found.cut
    prompt, completion = counted.prompt - used.prompt, counted.completion - used.completion
    sequences = counted.sequences - used.sequences
    allowed = cut.sequences * found.context_tokens
    least = min(prompt, 0) + min(completion, 0)
    gap = least or max(0, prompt + completion - allowed)
    wrong_sequences = sequences < 0 or sequences > cut.sequences
    cached = 0
    if counted.cached is not None and used.cached is not None and not cut.sequences:
        cached = counted.cached - used.cached
    if gap or wrong_sequences or cached:
        note = _difference(prompt, completion, sequences, cached)
        return Verdict(
            state="gap", gap_tokens=gap, unattributed_tokens=prompt + completion, allowed_tokens=allowed, note=note
        )
    if not cut.sequences:
        return Verdict(state="equal")
    note = f"{_requests(cut.sequences)} cut short, with {cut.tokens} tokens in usage"
    return Verdict(state="bounded", unattributed_tokens=prompt + completion, allowed_tokens=allowed, note=note)


def of_killed(found: Evidence) -> Verdict:
    """Judge a process that ended by surprise: what it counted after the last scrape is unknown.

    Rows that ended after the scrape may exceed the counters. What it counted and no row has is lost, as far as the
    requests that it ran can account for it.
    """
    counted, used, cut = found.counted, found.used, found.cut
    prompt, completion = counted.prompt - used.prompt, counted.completion - used.completion
    over = max(0, -prompt - found.late.prompt) + max(0, -completion - found.late.completion)
    if over:
        return Verdict(state="gap", gap_tokens=-over, note=_difference(prompt, completion, 0, 0))
    allowed = max(cut.sequences, found.open_sequences) * found.context_tokens
    unattributed = max(0, prompt) + max(0, completion)
    gap = max(0, unattributed - allowed)
    lost = Counts(prompt=max(0, prompt - cut.prompt), completion=max(0, completion - cut.completion))
    known = found.lost.tokens > 0
    if gap:
        note = f"{_difference(prompt, completion, 0, 0)}; {_requests(cut.sequences)} cut short explain {allowed}"
        return Verdict(state="gap", gap_tokens=gap, unattributed_tokens=unattributed, allowed_tokens=allowed, note=note)
    if not lost.tokens and not known:
        return Verdict(
            state="equal" if not unattributed else "bounded", unattributed_tokens=unattributed, allowed_tokens=allowed
        )
    return Verdict(
        state="lost", unattributed_tokens=unattributed, allowed_tokens=allowed, lost=Counts() if known else lost
    )


def of_running(found: Evidence, *, counted_before: int, used_before: int) -> Verdict:
    """Judge a process that runs, by what was counted and stored at an earlier comparison.

    What was stored then must be counted by now, and what was counted then must be stored by now, except for requests
    that still run or were cut short.
    """
    over = used_before - found.counted.tokens
    allowed = (found.cut.sequences + found.open_sequences) * found.context_tokens
    under = counted_before - found.used.tokens
    if over > 0:
        return Verdict(state="gap", gap_tokens=-over, note=f"usage has {over} tokens more than the engine counted")
    gap = max(0, under - allowed)
    if gap:
        note = f"the engine counted {under} tokens that usage lacks; cut and running requests explain {allowed}"
        return Verdict(state="gap", gap_tokens=gap, unattributed_tokens=under, allowed_tokens=allowed, note=note)
    return Verdict(state="running", unattributed_tokens=max(0, under), allowed_tokens=allowed)


def _difference(prompt: int, completion: int, sequences: int, cached: int) -> str:
    parts = [
        f"{number:+} {name}"
        for number, name in (
            (prompt, "prompt tokens"),
            (completion, "completion tokens"),
            (sequences, "finished sequences"),
            (cached, "cached tokens"),
        )
        if number
    ]
    return f"the engine counted, beyond usage: {', '.join(parts)}"


def _requests(number: int) -> str:
    return f"{number} sequence{'s' if number != 1 else ''}"

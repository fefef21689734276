"""What an agent has done since its process started; read by its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Only the agent's thread writes it; anybody may read."""

    adopted: int = 0
    orphans_killed: int = 0
    placeholders_evicted: int = 0
    promoted: int = 0
    promotions_failed: int = 0
    slots_quarantined: int = 0

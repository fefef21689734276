"""Errors of reserved capacity.

ReservationError
└── ReservationRefused   a reservation is not made, or not ended
"""

from __future__ import annotations

from dataclasses import dataclass


class ReservationError(Exception):
    """Base of this package's errors."""


@dataclass(eq=False)
class ReservationRefused(ReservationError):
    """Nothing was changed. ``field`` is what was wrong; ``problem`` and ``remedy`` are sentences."""

    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return both sentences."""
        return f"{self.problem} {self.remedy}"

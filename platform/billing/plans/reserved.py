"""What a tenant's reserved capacity adds to a month. Pure and exact.

Each reservation has up to three lines: the price of its slot hours; a credit for the part of them in which the slots
were not available, to the second; and the tokens that are included in the slot hours that are paid. These come before
the terms of a plan, like an allowance. Only the credit is rounded, once, half to even, to a pico-unit; and the included
tokens to a whole number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedTime:
    """The measured hours of one reservation in a month; ``available_seconds`` are of all its slots together."""

    deployment: str
    model_names: Sequence[str]
    slots: int
    hours: int
    available_seconds: int
    currency: str
    slot_hour_pico: int
    tokens_per_slot_hour: int

    @property
    def slot_hours(self) -> int:
        """The hours of slots that were reserved."""
        return self.slots * self.hours

    @property
    def missing_seconds(self) -> int:
        """The seconds of slots that were reserved and not available."""
        return self.slot_hours * HOUR_SECONDS - self.available_seconds

    @property
    def price_pico(self) -> int:
        """The price of the slot hours that were reserved."""
        return self.slot_hours * self.slot_hour_pico

    @property
    def credit_pico(self) -> int:
        """What is not charged of it, because slots were not available."""
        return round(Fraction(self.missing_seconds * self.slot_hour_pico, HOUR_SECONDS))

    @property
    def included_tokens(self) -> int:
        """The tokens that are included in the slot hours that are paid."""
        return round(Fraction(self.available_seconds * self.tokens_per_slot_hour, HOUR_SECONDS))

"""Read moments and prices of reservations that were typed."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, DecimalException
from zoneinfo import ZoneInfo

from reserved_capacity import registry
from reserved_capacity.errors import ReservationRefused

PICO = 10**12


def moment(field: str, text: str, zone: str) -> dt.datetime:
    """Return the moment of a text: a month as YYYY-MM, from its first full hour in the zone, or a time with its zone.

    Raises ReservationRefused.
    """
    if month := re.fullmatch(r"(20\d\d|21\d\d)-(0[1-9]|1[0-2])", text, re.ASCII):
        return registry.next_hour(dt.datetime(int(month[1]), int(month[2]), 1, tzinfo=ZoneInfo(zone)))
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found.year > registry.LAST_YEAR:
        raise ReservationRefused(
            field, f"{text[:40]!r} is no time.", "Use a month as 2026-12, or a full hour as 2026-12-01T00:00Z."
        )
    return found


def price(text: str) -> int:
    """Return an amount in units of a currency as pico-units. Raises ReservationRefused."""
    try:
        exact = Decimal(text.strip()) * PICO
    except DecimalException:
        exact = Decimal("NaN")
    if not exact.is_finite() or exact != exact.to_integral_value() or not 0 <= exact <= registry.HIGHEST_SLOT_HOUR_PICO:
        raise ReservationRefused(
            "slot_hour", f"{text.strip()[:40]!r} is no price of a slot and hour.", "Use 0 to 1000000, as 2.50."
        )
    return int(exact)

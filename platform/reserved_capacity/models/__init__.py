"""The tables of reserved capacity."""

from reserved_capacity.models.hours import ReservedHour
from reserved_capacity.models.reservations import CapacityReservation

__all__ = ["CapacityReservation", "ReservedHour"]

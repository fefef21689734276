"""Flights of all gateway processes: who asks for an answer that another process waits for follows that one's flight."""

from __future__ import annotations

from caching.single_flight import Flight, SingleFlight
from tenants.snapshot import Caller


class SharedFlights(SingleFlight):
    """The flights of this process, and mirrors of those of others."""

    async def claim(self, caller: Caller, name: bytes) -> Flight | None:
        """Return the flight to follow, of this process or mirrored here; None: begin one, before anything is awaited.

        A follower joins the flight before it awaits anything. Ask again when the flight that was followed failed.
        Waits for nobody who is not there: a few seconds at most for a process that has stopped in the middle.
        """
        return self.find(name)

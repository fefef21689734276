"""How long the database has been available to this process: while it was unavailable no agent could renew a lease."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

#: Ticks come every two seconds. A longer pause between two means that the database was unavailable, or this process
#: suspended; a shorter one ends before any lease does.
LONGEST_PAUSE_SECONDS = 8.0


class DatabaseUptime:
    """How long the database has answered without a pause. ``clock`` returns seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = 0.0

    def observe(self) -> dt.timedelta:
        """Record that the database answers now, and return how long it has answered without a pause."""
        now = self._clock()
        if self._since is None or now - self._last > LONGEST_PAUSE_SECONDS:
            self._since = now
        self._last = now
        return dt.timedelta(seconds=now - self._since)

"""The limits of requests per minute that Redis has just reported as used up, and until when.

Every request takes one from them, so a further one is rejected in any case until then. Remembering that here lets the
gateway refuse a large body before it reads it, without a command to Redis.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from gateway.admission import rejections
from tenants.caller_limits import LimitLine

#: Most limits that are remembered. Beyond, those that are over are forgotten first, then the oldest.
MOST_LIMITS = 10_000


class UsedUpLimits:
    """The limits of one process. A limit that was changed is another one."""

    def __init__(self) -> None:
        #: Monotonic seconds.
        self._until: dict[LimitLine, float] = {}

    def add(self, line: LimitLine, wait_ms: int) -> None:
        """Note that a limit admits no request for this time."""
        now = time.monotonic()
        if len(self._until) >= MOST_LIMITS:
            self._until = {each: until for each, until in self._until.items() if until > now}
        if len(self._until) >= MOST_LIMITS:
            del self._until[next(iter(self._until))]
        self._until[line] = now + wait_ms / 1000

    def check(self, lines: Iterable[LimitLine]) -> None:
        """Raise RateLimited if one of the limits still admits no request."""
        if not self._until:
            return
        now = time.monotonic()
        for line in lines:
            until = self._until.get(line)
            if until is None:
                continue
            if until > now:
                raise rejections.limited(line, "requests", int((until - now) * 1000) + 1)
            del self._until[line]

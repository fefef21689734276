"""Requests per minute as a token bucket, in Redis and, while Redis is away, in this process.

The bucket holds one minute's worth and refills evenly (GCRA: it is kept as one number, the time at which it would be
full). Times and intervals are whole microseconds, an interval rounded up, so that a bucket of N admits exactly N and
never more than the limit afterwards. A refusal takes nothing. While Redis is away each process counts for itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway.messages import Headers

MINUTE_US = 60_000_000

#: KEYS[1] the bucket; ARGV[1] requests a minute. Returns {admitted, remaining, wait in
#: microseconds}: until the bucket is full again, or for a refusal until one fits.
#: Microseconds since 1970 stay below 2^53, where Lua's doubles are exact.
SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval = math.ceil(60000000 / tonumber(ARGV[1]))
local whole = interval * tonumber(ARGV[1])
-- a clock that was set back, or a limit that was lowered, makes nobody wait for more than a minute
local owed = math.min(math.max(tonumber(redis.call('GET', KEYS[1]) or now) - now, 0), whole) + interval
if owed > whole then
    return {0, 0, owed - whole}
end
redis.call('SET', KEYS[1], string.format('%.0f', now + owed), 'PX', math.ceil(whole / 1000) + 1000)
return {1, math.floor((whole - owed) / interval), owed}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one request fits. ``wait_us``: until the bucket is full again, or for a refusal until one fits."""

    admitted: bool
    limit: int
    remaining: int
    wait_us: int

    def headers(self) -> Headers:
        """Return the usual headers; the reset is in seconds with one decimal, as OpenAI writes it."""
        return [
            (b"x-ratelimit-limit-requests", str(self.limit).encode()),
            (b"x-ratelimit-remaining-requests", str(self.remaining).encode()),
            (b"x-ratelimit-reset-requests", f"{self.wait_us / 1e6:.1f}s".encode()),
        ]


class LocalBuckets:
    """The same bucket in memory, for the time Redis is away. Holds one number per tenant seen meanwhile."""

    def __init__(self) -> None:
        self._full_at: dict[str, int] = {}

    def take(self, key: str, limit: int) -> Verdict:
        """Take one request from the bucket, if it fits."""
        now = time.monotonic_ns() // 1000
        interval = -(-MINUTE_US // limit)
        whole = interval * limit
        owed = min(max(self._full_at.get(key, now) - now, 0), whole) + interval
        if owed > whole:
            return Verdict(admitted=False, limit=limit, remaining=0, wait_us=owed - whole)
        self._full_at[key] = now + owed
        return Verdict(admitted=True, limit=limit, remaining=(whole - owed) // interval, wait_us=owed)

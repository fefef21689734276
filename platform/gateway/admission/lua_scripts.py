"""The Lua scripts that admit a request, extend its hold and end it; each runs in Redis as one atomic step.

A tenant's keys, all on one cluster node:

- ``limits``: a hash with a field per limit, five doubles: requests owed, since when, tokens owed, since when, and the
  limit of tokens at that time. Amounts owed are 60 000ths of a request or token, so that a limit of N per minute pays
  off N each millisecond, and every number is an integer below 2^53, where doubles are exact.
- ``leases:<limit>``: the running requests, a sorted set by when each lease ends, milliseconds.
- ``holds`` and ``budget:…``: see ``billing.budgets.holds``.

Times are Redis's own, in milliseconds.
"""

from __future__ import annotations

from pathlib import Path

from billing.budgets.holds import COUNTED_ON, SETTLE_FUNCTION
from gateway.redis_client.connection import Script

#: Units per request or token in the buckets.
UNITS = 60_000
#: The most that a bucket may owe: below 2^53 with room for one more sum.
MOST_OWED = 9 * 10**15
#: Larger values are fetched with a separate GET, because Redis serves no other client while a script runs.
RIDE_ALONG_BYTES = 32 * 1024
#: A tenant's buckets expire after this time without a request, together with what they owe.
FORGOTTEN_MS = 3_600_000

#: The outcome of ADMIT and EXTEND.
ADMITTED, LIMITED, TOO_LARGE, UNKNOWN, EXCEEDED = 1, 0, -1, -2, -3

_CONSTANTS = f"""
local UNITS, MOST_OWED, RIDE_ALONG_BYTES, FORGOTTEN_MS = {UNITS}, {MOST_OWED}, {RIDE_ALONG_BYTES}, {FORGOTTEN_MS}
local SERVER = '{COUNTED_ON}'
local ADMITTED, LIMITED, TOO_LARGE, UNKNOWN, EXCEEDED = {ADMITTED}, {LIMITED}, {TOO_LARGE}, {UNKNOWN}, {EXCEEDED}
"""


def _lua(name: str) -> str:
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text()


ADMIT = Script.of(_CONSTANTS + _lua("clock") + _lua("buckets") + _lua("hold") + SETTLE_FUNCTION + _lua("admit"))
EXTEND = Script.of(_CONSTANTS + _lua("hold") + _lua("extend"))
CHARGE = Script.of(SETTLE_FUNCTION + _lua("charge"))
RESERVE = Script.of(_CONSTANTS + _lua("reserve"))
SETTLE = Script.of(_CONSTANTS + _lua("clock") + _lua("buckets") + SETTLE_FUNCTION + _lua("settle"))
RENEW = Script.of(_lua("clock") + _lua("renew"))

"""Read and set the counters of budgets in Redis, each tenant's in one atomic step, those of many tenants in one turn.

What the keys hold is in ``billing.budgets.holds``. Amounts are summed here in Python, in Redis by DECRBY alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from redis import Redis
from redis.exceptions import DataError

from billing.budgets.holds import SETTLED, counter_prefix, holds_key
from tenants.ids import TenantId

#: A counter is no less than this, whatever was spent: DECRBY must not run out of 64 bits.
LOWEST_PICO = -(2**62)

#: KEYS[1] the tenant's holds; ARGV: what its counters' keys begin with, then their names. Returns the hash and values.
_READ = """
local left = {}
for i = 2, #ARGV do
    left[i - 1] = redis.call('GET', ARGV[1] .. ARGV[i])
end
return {redis.call('HGETALL', KEYS[1]), left}
"""

#: KEYS[1] the tenant's holds; ARGV: what its counters' keys begin with; the number of fields to remove, and they; the
#: number of holds to add, and of each its field and value; of each counter its name, what it is before the holds are
#: taken off, and after how many seconds it expires (0 never).
_RECOUNT = """
local at = 3
local function each(size, work)
    local last = at + tonumber(ARGV[at - 1]) * size - 1
    for i = at, last, size do
        work(i)
    end
    at = last + 2
end
each(1, function(i) redis.call('HDEL', KEYS[1], ARGV[i]) end)
each(2, function(i) redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end)
local counted = {}
for i = at - 1, #ARGV, 3 do
    local key = ARGV[1] .. ARGV[i]
    redis.call('SET', key, ARGV[i + 1])
    if ARGV[i + 2] ~= '0' then
        redis.call('EXPIRE', key, ARGV[i + 2])
    end
    counted[ARGV[i]] = key
end
for i, value in ipairs(redis.call('HVALS', KEYS[1])) do
    local amount
    for word in string.gmatch(value, '%S+') do
        if not amount then
            amount = string.gsub(word, '^=', '')
        elseif counted[word] then
            redis.call('DECRBY', counted[word], amount)
        end
    end
end
return 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One entry of a tenant's holds. ``settled``: ``pico`` is what was charged, and waits for its row."""

    pico: int
    counters: frozenset[str]
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant's holds by request id in hex, and what is left by counter (None: unknown), as of one moment."""

    holds: Mapping[str, Hold]
    left: Mapping[str, int | None]

    def held(self, counter: str, without: frozenset[str] = frozenset()) -> int:
        """Return what the holds, apart from these requests', take off a counter."""
        return sum(each.pico for name, each in self.holds.items() if counter in each.counters and name not in without)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """How a tenant's counters are set. ``before_holds`` is by counter: limit less what is stored."""

    before_holds: Mapping[str, int]
    #: After how many seconds, by counter; one that is missing stays for good.
    expires: Mapping[str, int] = field(default_factory=dict)
    #: Holds that end, by request id in hex.
    removed: Iterable[str] = ()
    #: Values of holds that were lost, by request id in hex.
    added: Mapping[str, str] = field(default_factory=dict)


class BudgetCounters:
    """The counters in one Redis. Every method raises redis.RedisError where it does not answer in time, or nonsense."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._redis = Redis.from_url(
            url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds, decode_responses=True
        )

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def read(self, wanted: Mapping[TenantId, Sequence[str]]) -> dict[TenantId, Account]:
        """Return the account of each tenant with these counters."""
        if not wanted:
            return {}
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, names in wanted.items():
                pipe.eval(_READ, 1, holds_key(tenant_id), counter_prefix(tenant_id), *names)
            replies = pipe.execute()
        try:
            return {
                tenant_id: _account(names, *reply)
                for (tenant_id, names), reply in zip(wanted.items(), replies, strict=True)
            }
        except ValueError as error:
            raise DataError(f"somebody else wrote into holds or counters: {error}") from error

    def left(self, wanted: Mapping[TenantId, Sequence[str]]) -> dict[str, int | None]:
        """Return what is left by counter; None where nobody has counted yet."""
        keys = {name: f"{counter_prefix(tenant_id)}{name}" for tenant_id, names in wanted.items() for name in names}
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys.values():
                pipe.get(key)
            values = pipe.execute()
        return {name: None if value is None else int(value) for name, value in zip(keys, values, strict=True)}

    def recount(self, recounts: Mapping[TenantId, Recount]) -> None:
        """Set the counters. Exact while no usage is stored meanwhile; requests may come and go."""
        if not recounts:
            return
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, each in recounts.items():
                pipe.eval(_RECOUNT, 1, holds_key(tenant_id), counter_prefix(tenant_id), *_arguments(each))
            pipe.execute()

    def forget(self, settled: Mapping[TenantId, Iterable[str]]) -> None:
        """Remove settled holds whose rows are stored, by request id in hex: no counter moves by it."""
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, names in settled.items():
                pipe.hdel(holds_key(tenant_id), *names)
            pipe.execute()


def _account(names: Sequence[str], pairs: Sequence[str], left: Sequence[str | None]) -> Account:
    return Account(
        holds={name: _hold(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)},
        left={name: None if value is None else int(value) for name, value in zip(names, left, strict=True)},
    )


def _hold(value: str) -> Hold:
    amount, *counters = value.split()
    return Hold(
        pico=int(amount.removeprefix(SETTLED)), counters=frozenset(counters), settled=amount.startswith(SETTLED)
    )


def _arguments(each: Recount) -> list[str | int]:
    removed = list(each.removed)
    return [
        len(removed),
        *removed,
        len(each.added),
        *[word for pair in each.added.items() for word in pair],
        *[
            word
            for name, pico in each.before_holds.items()
            for word in (name, max(pico, LOWEST_PICO), each.expires.get(name, 0))
        ],
    ]

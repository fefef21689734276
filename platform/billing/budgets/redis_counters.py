"""Read and set the counters of budgets in Redis, each tenant's in one atomic step, those of many tenants in one turn.

What the keys hold is in ``billing.budgets.holds``. Amounts are summed here in Python, in Redis by DECRBY alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from redis.exceptions import DataError

from billing.budgets.holds import SETTLED, counter_prefix, holds_key
from tenants.ids import TenantId

#: A counter is no less than this, whatever was spent: DECRBY must not run out of 64 bits.
LOWEST_PICO = -(2**62)

_FOLDER = Path(__file__).parent
_READ = (_FOLDER / "read_counters.lua").read_text()
_RECOUNT = (_FOLDER / "recount_counters.lua").read_text()


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

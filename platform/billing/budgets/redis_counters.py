"""Read and set budget counters in Redis: one atomic step per tenant, one round trip for many tenants.

``billing.budgets.holds`` describes the keys. Amounts are summed here in Python, and in Redis only by DECRBY. An entry
that no gateway wrote is reported as malformed, so that it affects no other entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from redis import ResponseError

from billing.budgets.holds import SETTLED, counter_prefix, holds_key
from tenants import redis_address
from tenants.ids import TenantId

#: Lower bound of a counter, whatever was spent, so that DECRBY cannot overflow 64 bits.
LOWEST_PICO = -(2**62)
#: Upper bound of a hold, for the same reason.
HIGHEST_HOLD_PICO = 2**62

#: A hash: for each host, the server on which its reconciler last restored its holds, and when.
RECONCILERS = "hearth:budget-reconcilers"
_FOLDER = Path(__file__).parent
_READ = (_FOLDER / "read_counters.lua").read_text()
_RECOUNT = (_FOLDER / "recount_counters.lua").read_text()
_AMOUNT = re.compile(rf"({SETTLED})?([0-9]{{1,19}})")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
#: A malformed field may be no UTF-8, and is removed by its bytes.
_UNDECODABLE = "surrogateescape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One entry of a tenant's holds. If ``settled``, ``pico`` was charged and its usage row is not stored yet."""

    pico: int
    counters: frozenset[str]
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant's holds by request id in hex, and the amount left by counter, at one moment."""

    holds: Mapping[str, Hold]
    #: None: Redis has no such counter, or its value is no amount.
    left: Mapping[str, int | None]
    #: Whether the counters were counted on the server that answered. Another one's last writes may be missing.
    current: bool = True
    #: Fields of the holds whose values are no holds.
    malformed: frozenset[str] = frozenset()

    def held(self, counter: str, without: frozenset[str] = frozenset()) -> int:
        """Return how much the holds, except those of these requests, take from a counter."""
        return sum(each.pico for name, each in self.holds.items() if counter in each.counters and name not in without)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """New values of a tenant's counters. ``before_holds``: limit minus stored charges, by counter."""

    before_holds: Mapping[str, int]
    #: The server on which they are counted; empty to leave what is known of that.
    counted_on: str = ""
    #: Seconds to live by counter; a counter that is not listed never expires.
    expires: Mapping[str, int] = field(default_factory=dict)
    #: Holds to remove, by request id in hex.
    removed: Iterable[str] = ()
    #: Values of lost holds to restore, by request id in hex.
    added: Mapping[str, str] = field(default_factory=dict)


class BudgetCounters:
    """The counters in one Redis. Methods raise redis.RedisError when it times out."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._redis = redis_address.client(
            url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            decode_responses=True,
            encoding_errors=_UNDECODABLE,
        )

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def server(self) -> str:
        """Return the run id of the server, which changes with each start; empty if it may not be asked."""
        try:
            return str(self._redis.info("server").get("run_id", ""))
        except ResponseError:
            return ""

    def report(self, host: str, server: str, now: float) -> None:
        """Record that this host's reconciler has restored on this server what it lacked of its own holds."""
        self._redis.hset(RECONCILERS, host, f"{server} {now:.3f}")

    def reports(self) -> dict[str, tuple[str, float]]:
        """Return the last report of each host: the server, and when."""
        found = cast("dict[str, str]", self._redis.hgetall(RECONCILERS))
        return {host: (server, float(at)) for host, text in found.items() for server, _, at in [text.rpartition(" ")]}

    def read(self, wanted: Mapping[TenantId, Sequence[str]]) -> dict[TenantId, Account]:
        """Return the account of each tenant with these counters."""
        if not wanted:
            return {}
        server = self.server()
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, names in wanted.items():
                pipe.eval(_READ, 1, holds_key(tenant_id), counter_prefix(tenant_id), *names)
            replies = pipe.execute()
        return {
            tenant_id: _account(server, names, *reply)
            for (tenant_id, names), reply in zip(wanted.items(), replies, strict=True)
        }

    def recount(self, recounts: Mapping[TenantId, Recount]) -> None:
        """Set the counters. Exact if no usage is stored meanwhile; requests may start and end."""
        if not recounts:
            return
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, each in recounts.items():
                pipe.eval(_RECOUNT, 1, holds_key(tenant_id), counter_prefix(tenant_id), *_arguments(each))
            pipe.execute()

    def forget(self, settled: Mapping[TenantId, Iterable[str]]) -> None:
        """Remove settled holds whose rows are stored, by request id in hex. No counter changes."""
        with self._redis.pipeline(transaction=False) as pipe:
            for tenant_id, names in settled.items():
                pipe.hdel(holds_key(tenant_id), *names)
            pipe.execute()


def _account(
    server: str, names: Sequence[str], pairs: Sequence[str], left: Sequence[str | None], counted_on: str | None
) -> Account:
    found = {name: _hold(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    return Account(
        holds={name: hold for name, hold in found.items() if hold is not None},
        left={name: _amount_left(value) for name, value in zip(names, left, strict=True)},
        current=server in {"", counted_on},
        malformed=frozenset(name for name, hold in found.items() if hold is None),
    )


def _hold(value: str) -> Hold | None:
    """Return the hold that a value describes, if DECRBY can subtract it; None for any other value."""
    amount, *counters = value.split() or [""]
    matched = _AMOUNT.fullmatch(amount)
    if matched is None or int(matched[2]) > HIGHEST_HOLD_PICO:
        return None
    return Hold(pico=int(matched[2]), counters=frozenset(counters), settled=matched[1] is not None)


def _amount_left(value: str | None) -> int | None:
    return int(value) if value is not None and _INTEGER.fullmatch(value) else None


def _arguments(each: Recount) -> list[str | bytes | int]:
    removed = [name.encode(errors=_UNDECODABLE) for name in each.removed]
    return [
        each.counted_on,
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

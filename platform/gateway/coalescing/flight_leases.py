"""Which process waits for an answer: a lease in Redis by the answer's name, for as long as its flight lasts.

A lease is a sealed address and a fence: whoever can write to Redis cannot send a gateway elsewhere. One that is not
renewed ends by itself; one whose process is dead is taken over by comparing it, so that of many one takes it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission.lease_renewer import batches
from gateway.redis_client.client import Turns
from gateway.redis_client.connection import RedisFailed, Script
from tenants import keyspace
from tenants.ids import TenantId
from tenants.snapshot import Caller

#: How long the lease of a process that died stays, and how often one is renewed meanwhile.
LEASE_SECONDS = 5.0
RENEWALS = 3
_SEAL_BYTES = 32
_FENCE_BYTES = 8

#: KEYS: the lease. ARGV: the one to put there, for how long in milliseconds, one that may be replaced, or nothing.
#: Returns the lease of somebody else; nothing once this one is there.
_TAKE = Script.of("""
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[3] then return found end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
""")
#: KEYS: leases of one tenant. ARGV: for how long from now in milliseconds, and what each must be.
_RENEW = Script.of("""
for i = 1, #KEYS do
    if redis.call('GET', KEYS[i]) == ARGV[i + 1] then redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
end
return 1
""")
#: KEYS: the lease. ARGV: what it must be.
_RELEASE = Script.of("""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""")


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """A lease that this process asks for or has. ``value`` is what Redis holds."""

    name: bytes
    tenant_id: TenantId
    key: str
    value: bytes
    #: Monotonic seconds.
    asked_at: float = field(default_factory=time.monotonic)
    #: Set once its flight has begun, or will not.
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The lease of another process: what Redis holds, and where that listens."""

    value: bytes
    address: str


class FlightLeases:
    """The leases of one process. Lives on one event loop."""

    def __init__(self, turns: Turns, address: Callable[[], str], *, lease_seconds: float = LEASE_SECONDS) -> None:
        """``address``: where this process listens."""
        turns.teach(_TAKE, _RENEW, _RELEASE)
        self._turns = turns
        self._address = address
        self._lease_ms = int(lease_seconds * 1000)
        self._leases: dict[bytes, Lease] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, caller: Caller, name: bytes, dead: bytes = b"") -> Lease | Owner | None:
        """Take the lease of an answer, or say who has it; None while Redis is away.

        ``dead``: a lease that is replaced if it is still there.
        """
        if self._turns.failing:
            return None
        lease = self._leases[name] = self._new(caller, name)
        try:
            found = await self._turns.call(_TAKE, 1, lease.key, lease.value, self._lease_ms, dead)
        except BaseException as failure:
            self.release(name)
            if isinstance(failure, RedisFailed):
                return None
            raise
        if found is None:
            self._renew_later()
            return lease
        self._forget(lease)
        return _owner(name, found)

    def find(self, name: bytes) -> Lease | None:
        """Return the lease that is asked for, or had, here."""
        return self._leases.get(name)

    def release(self, name: bytes) -> None:
        """Give a lease back, if there is one; nobody waits for it."""
        lease = self._leases.get(name)
        if lease is not None:
            self._forget(lease)
            self._turns.tell_script(_RELEASE, 1, lease.key, lease.value)

    def close(self) -> None:
        """Give all back. The conversation must still be open."""
        for name in list(self._leases):
            self.release(name)
        if self._timer is not None:
            self._timer.cancel()

    def _new(self, caller: Caller, name: bytes) -> Lease:
        packed = secrets.token_bytes(_FENCE_BYTES) + self._address().encode()
        return Lease(
            name=name,
            tenant_id=caller.tenant_id,
            key=keyspace.redis_key(caller, "flight", name.hex()),
            value=keyspace.value_mac(name, packed) + packed,
        )

    def _forget(self, lease: Lease) -> None:
        lease.begun.set()
        if self._leases.get(lease.name) is lease:
            del self._leases[lease.name]

    def _renew_later(self) -> None:
        if self._timer is None:
            pause = self._lease_ms / 1000 / RENEWALS
            self._timer = asyncio.get_running_loop().call_later(pause, self._renew)

    def _renew(self) -> None:
        """Renew those whose flights run: one whose request died before its flight began ends by itself.

        Most flights are over before their lease has to be renewed; a young one's waits for the next round.
        """
        self._timer = None
        lease_seconds = self._lease_ms / 1000
        by_tenant: dict[TenantId, list[Lease]] = {}
        for lease in list(self._leases.values()):
            age_seconds = time.monotonic() - lease.asked_at
            if not lease.begun.is_set():
                if age_seconds > lease_seconds:
                    self._forget(lease)
            elif age_seconds > lease_seconds / RENEWALS / 2:
                by_tenant.setdefault(lease.tenant_id, []).append(lease)
        for leases in by_tenant.values():
            for batch in batches(leases):
                keys = [each.key for each in batch]
                self._turns.tell_script(_RENEW, len(keys), *keys, self._lease_ms, *[each.value for each in batch])
        if self._leases:
            self._renew_later()


def _owner(name: bytes, value: bytes) -> Owner | None:
    """Return whose lease this is; None for one that no gateway made, which ends by itself or is let be."""
    seal, packed = value[:_SEAL_BYTES], value[_SEAL_BYTES:]
    if not hmac.compare_digest(seal, keyspace.value_mac(name, packed)):
        return None
    return Owner(value=value, address=packed[_FENCE_BYTES:].decode())

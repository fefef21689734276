"""Which process of a host leads a flight: a lease in Redis under the flight's name, for as long as the flight runs.

A lease holds a fence and the sealed address of its process: write access to Redis is not enough to forge one. A lease
that is not renewed expires. One whose process is dead is taken over by comparing its value, so that exactly one process
succeeds. Its key names the host's folder of sockets, because only processes of one folder can reach each other.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from gateway.coalescing.peer_listener import PeerListener
from gateway.redis_client.client import RedisClient, batches
from gateway.redis_client.connection import RedisFailed, Script
from tenants.ids import TenantId
from tenants.isolation import keyspace, sealed
from tenants.snapshot.snapshot import Caller

#: How long the lease of a dead process lasts, and how often one is renewed in that time.
LEASE_SECONDS = 5.0
RENEWALS = 3
_FENCE_BYTES = 8

_FOLDER = Path(__file__).parent
_TAKE = Script.of((_FOLDER / "take_lease.lua").read_text())
_RENEW = Script.of((_FOLDER / "renew_leases.lua").read_text())
_RELEASE = Script.of((_FOLDER / "release_lease.lua").read_text())


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """A lease that this process has or is taking. ``value`` is what Redis holds."""

    name: bytes
    tenant_id: TenantId
    key: str
    value: bytes
    #: Monotonic seconds.
    requested_at: float = field(default_factory=time.monotonic)
    #: Set once its flight has begun, or will not begin.
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The lease of another process: what Redis holds, and the address of that process."""

    value: bytes
    address: str


class FlightLeases:
    """The leases of one process. Lives on one event loop."""

    def __init__(self, redis: RedisClient, listener: PeerListener, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """``listener``: where other processes reach this one."""
        redis.register(_TAKE, _RENEW, _RELEASE)
        self._redis = redis
        self._listener = listener
        self._lease_ms = int(lease_seconds * 1000)
        self._leases: dict[bytes, Lease] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, caller: Caller, name: bytes, dead: bytes = b"") -> Lease | Owner | None:
        """Take the lease of a flight, or return its owner; None while Redis is unavailable.

        ``dead``: the value of a lease to replace if Redis still holds it.
        """
        if self._redis.failing:
            return None
        lease = self._leases[name] = self._new(caller, name)
        try:
            found = await self._redis.eval(_TAKE, 1, lease.key, lease.value, self._lease_ms, dead)
        except BaseException as failure:
            self.release(name)
            if isinstance(failure, RedisFailed):
                return None
            raise
        if found is None:
            self._schedule_renewal()
            return lease
        self._forget(lease)
        return _owner(name, found)

    def find(self, name: bytes) -> Lease | None:
        """Return the lease that this process has or is taking."""
        return self._leases.get(name)

    def release(self, name: bytes) -> None:
        """Release a lease, if there is one, without waiting for Redis."""
        lease = self._leases.get(name)
        if lease is not None:
            self._forget(lease)
            self._redis.fire_script(_RELEASE, 1, lease.key, lease.value)

    def close(self) -> None:
        """Release all leases. Redis must still be open."""
        for name in list(self._leases):
            self.release(name)
        if self._timer is not None:
            self._timer.cancel()

    def _new(self, caller: Caller, name: bytes) -> Lease:
        packed = secrets.token_bytes(_FENCE_BYTES) + self._listener.address.encode()
        return Lease(
            name=name,
            tenant_id=caller.tenant_id,
            key=keyspace.redis_key(caller, "flight", f"{self._listener.folder}:{name.hex()}"),
            value=sealed.seal(name, packed),
        )

    def _forget(self, lease: Lease) -> None:
        lease.begun.set()
        if self._leases.get(lease.name) is lease:
            del self._leases[lease.name]

    def _schedule_renewal(self) -> None:
        if self._timer is None:
            pause = self._lease_ms / 1000 / RENEWALS
            self._timer = asyncio.get_running_loop().call_later(pause, self._renew)

    def _renew(self) -> None:
        """Renew the leases of running flights: one whose request died before its flight began expires.

        Most flights end before their lease has to be renewed; a young lease waits for the next round.
        """
        self._timer = None
        lease_seconds = self._lease_ms / 1000
        by_tenant: dict[TenantId, list[Lease]] = {}
        for lease in list(self._leases.values()):
            age_seconds = time.monotonic() - lease.requested_at
            if not lease.begun.is_set():
                if age_seconds > lease_seconds:
                    self._forget(lease)
            elif age_seconds > lease_seconds / RENEWALS / 2:
                by_tenant.setdefault(lease.tenant_id, []).append(lease)
        for leases in by_tenant.values():
            for batch in batches(leases):
                keys = [each.key for each in batch]
                self._redis.fire_script(_RENEW, len(keys), *keys, self._lease_ms, *[each.value for each in batch])
        if self._leases:
            self._schedule_renewal()


def _owner(name: bytes, value: bytes) -> Owner | None:
    """Return the owner of a lease; None for a value that no gateway wrote: it stays until it expires."""
    packed = sealed.unseal(name, value)
    if packed is None:
        return None
    return Owner(value=value, address=packed[_FENCE_BYTES:].decode())

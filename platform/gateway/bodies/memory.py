"""The bytes of request bodies that a process has in memory, counted for each tenant from the head of the request.

A body counts with the length that its head announces, before any of it is read, until the response is sent. A large
one takes about four times its size meanwhile: as it arrived, as its fields, and as it goes to the engine.
"""

from __future__ import annotations

from gateway.errors import bodies_fill_gateway, bodies_fill_share
from tenants.ids import TenantId
from tenants.snapshot.snapshot import Caller

#: Bodies of all tenants, in each gateway process: 25 of the largest.
PROCESS_BYTES = 256 << 20
#: The part of it that one tenant may take. Its queue (``queue_bytes``) may be larger, which an operator decides.
TENANT_SHARE = 1 / 4
#: Bodies of one tenant up to this are never refused because others take the rest.
TENANT_FLOOR_BYTES = 256 << 10


class BodyMemory:
    """The account of one process. Lives on one event loop."""

    def __init__(self, process_bytes: int = PROCESS_BYTES) -> None:
        self.process_bytes = process_bytes
        self.used_bytes = 0
        #: By the tenant's id as a number, which Python hashes five times as fast as the id.
        self._by_tenant: dict[int, int] = {}

    def used_by(self, tenant_id: TenantId) -> int:
        """Return the bytes of a tenant's bodies."""
        return self._by_tenant.get(tenant_id.int, 0)

    def take(self, caller: Caller, more_bytes: int) -> None:
        """Count bytes for the caller's tenant. Raises RateLimited beyond its share, Unavailable if all is in use."""
        tenant = caller.tenant_id.int
        used = self._by_tenant.get(tenant, 0) + more_bytes
        share = max(int(self.process_bytes * TENANT_SHARE), caller.policy.queue_bytes)
        if used > share:
            raise bodies_fill_share(share)
        if used > TENANT_FLOOR_BYTES and self.used_bytes + more_bytes > self.process_bytes:
            raise bodies_fill_gateway()
        self._by_tenant[tenant] = used
        self.used_bytes += more_bytes

    def give_back(self, tenant_id: TenantId, size_bytes: int) -> None:
        """Stop counting bytes."""
        tenant = tenant_id.int
        left = self._by_tenant[tenant] - size_bytes
        self.used_bytes -= size_bytes
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]


class BodyShare:
    """What one request's body takes of the account, until :meth:`release`."""

    __slots__ = ("_caller", "_memory", "_size_bytes")

    def __init__(self) -> None:
        self._memory: BodyMemory | None = None
        self._caller: Caller | None = None
        self._size_bytes = 0

    def hold(self, memory: BodyMemory, caller: Caller, size_bytes: int) -> None:
        """Count a body of this many bytes, or of more than before. Raises RateLimited, Unavailable."""
        self._memory, self._caller = memory, caller
        self.grow(size_bytes)

    def grow(self, size_bytes: int) -> None:
        """Count a body that has become larger than it was announced. Raises RateLimited, Unavailable."""
        if size_bytes > self._size_bytes and self._memory is not None and self._caller is not None:
            self._memory.take(self._caller, size_bytes - self._size_bytes)
            self._size_bytes = size_bytes

    def release(self) -> None:
        """Stop counting the body. Idempotent."""
        if self._size_bytes and self._memory is not None and self._caller is not None:
            self._memory.give_back(self._caller.tenant_id, self._size_bytes)
            self._size_bytes = 0

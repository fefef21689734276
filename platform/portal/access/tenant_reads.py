"""Lists that span tenants, read behind row-level security: once for each tenant that the caller sees.

Whatever is not a single tenant's is read here. Operators see all tenants, so no row is hidden from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from portal.access.principal import Principal
from tenants.database.rls import as_tenant


class _Identified(Protocol):
    @property
    def id(self) -> UUID: ...


Row = TypeVar("Row", bound=_Identified)


def newest(principal: Principal, read: Callable[[], Sequence[Row]], most: int) -> list[Row]:
    """Return the newest ``most`` of the rows that ``read`` returns for each tenant, by their UUIDv7, each row once.

    ``read`` runs its queries when it is called and returns the newest rows that the current role sees, up to ``most``.
    """
    if principal.tenants is None:
        return list(read())
    found: dict[UUID, Row] = {}
    for tenant_id in sorted(principal.tenants):
        with as_tenant(tenant_id):
            found |= {row.id: row for row in read()}
    return sorted(found.values(), key=lambda row: row.id, reverse=True)[:most]

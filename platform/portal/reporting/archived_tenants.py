"""Archived tenants in the operator's tables: told together as one line, so that what they used stays in every sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from billing.ledger.rollups import Sums
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTenants:
    """Those that are archived among tenants that used something, and what they used together."""

    ids: frozenset[UUID]
    sums: Sums

    @property
    def name(self) -> str:
        """What their line is called."""
        return f"archived tenants ({len(self.ids)})"


def among(used: Mapping[UUID, Sums]) -> ArchivedTenants:
    """Return which of these tenants are archived."""
    archived = Tenant.objects.filter(id__in=used, state=Tenant.State.ARCHIVED)
    ids = frozenset(archived.values_list("id", flat=True))
    return ArchivedTenants(ids=ids, sums=sum((sums for identity, sums in used.items() if identity in ids), Sums()))

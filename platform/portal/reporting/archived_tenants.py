"""Archived tenants in the operator's tables: one row for all, so that their usage stays in every sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.utils.translation import gettext

from billing.ledger.rollups import Sums
from tenants.models import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTenants:
    """The archived tenants of a table, and their usage together."""

    ids: frozenset[UUID]
    sums: Sums

    @property
    def name(self) -> str:
        """The name of their row."""
        return gettext("archived tenants (%(count)s)") % {"count": len(self.ids)}


def among(used: Mapping[UUID, Sums]) -> ArchivedTenants:
    """Return the archived ones of these tenants, with their sums added up."""
    archived = Tenant.objects.filter(id__in=used, state=Tenant.State.ARCHIVED)
    ids = frozenset(archived.values_list("id", flat=True))
    return ArchivedTenants(ids=ids, sums=sum((sums for identity, sums in used.items() if identity in ids), Sums()))

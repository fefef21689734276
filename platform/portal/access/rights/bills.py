"""Which invoices a principal sees: operators all; owners, admins and billing members of a tenant that tenant's."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from billing.invoices import registry
from billing.models import Invoice
from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.errors import NotFound


def for_bills(principal: Principal) -> Principal:
    """Return the principal, with those of its tenants alone whose bills it handles. Raises NotPermitted without one."""
    if principal.tenants is None:
        return principal
    own = frozenset(tenant for tenant in principal.tenants if principal.handles_bills_of(tenant))
    if not own:
        raise NotPermitted("Only operators, and owners, admins and billing members of a tenant, may read invoices.")
    return replace(principal, tenants=own)


def invoice_for(principal: Principal, identity: UUID) -> Invoice:
    """Return an invoice. Raises NotPermitted, and NotFound unless this principal sees one."""
    if (tenants := for_bills(principal).tenants) is None:
        return registry.find(str(identity))
    for tenant in sorted(tenants):
        with as_tenant(tenant):
            found = Invoice.objects.filter(id=identity, tenant_id=tenant).first()
        if found is not None:
            return found
    raise NotFound("invoice", str(identity))

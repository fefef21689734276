"""Of whom a second factor is required besides a password: of a tenant's members, and of operators."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q

from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotAllowed
from tenants.identity.models import SecondFactorRule
from tenants.models import Tenant, User


def is_required(tenant: Tenant | None) -> bool:
    """Return whether it is required of the tenant's members; None: of operators."""
    return SecondFactorRule.objects.filter(tenant=tenant).exists()


def is_required_of(user: User) -> bool:
    """Return whether it is required of somebody who signs in with a password (one query).

    Whoever signs in through a provider has the second factor of that provider.
    """
    of_tenant = Q(tenant__memberships__user=user) & ~Q(tenant__state=Tenant.State.ARCHIVED)
    rules = SecondFactorRule.objects.filter(Q(tenant=None) if user.is_staff else of_tenant)
    return rules.exists() and not hasattr(user, "provider_member")


@transaction.atomic
def require(actor: Actor, tenant: Tenant | None, required: bool) -> None:
    """Require it of the tenant's members, or not any more; None: of operators. Raises NotAllowed if archived."""
    if tenant is not None and tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)
    before = is_required(tenant)
    if before == required:
        return
    if required:
        SecondFactorRule.objects.get_or_create(tenant=tenant)
    else:
        SecondFactorRule.objects.filter(tenant=tenant).delete()
    target = ("platform", "operators") if tenant is None else ("tenant", tenant.id)
    audit.record(
        actor, "second_factor.rule", target, tenant=tenant, before={"required": before}, after={"required": required}
    )

"""Of whom a second factor is required besides a password: of a tenant's members, and of operators."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

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
    return bool(required_among([user]))


def required_among(users: Iterable[User]) -> set[int]:
    """Return the ids of those of whom it is required (one query)."""
    found = User.objects.filter(pk__in=[user.pk for user in users], provider_member=None)
    of_operators = SecondFactorRule.objects.filter(tenant=None)
    of_tenants = SecondFactorRule.objects.filter(tenant__memberships__user=OuterRef("pk")).exclude(
        tenant__state=Tenant.State.ARCHIVED
    )
    required = Q(Exists(of_operators), is_staff=True) | Q(Exists(of_tenants), is_staff=False)
    return set(found.filter(required).values_list("pk", flat=True))


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

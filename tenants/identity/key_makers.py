"""Who made a tenant's keys and has left since: an owner decides whether their keys go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenants.database.rls import as_tenant
from tenants.identity.models import ProviderMember
from tenants.ids import TenantId
from tenants.models import ApiKey, Membership, Tenant, User


def notes(tenant: Tenant, keys: Iterable[ApiKey]) -> Mapping[int, str]:
    """Return by user id what an owner should know about makers of these keys; nothing about those who are still here.

    Operators are never members, so nothing is said about them. Call it outside ``as_tenant``.
    """
    makers = {key.created_by_id for key in keys if key.created_by_id is not None}
    if not makers:
        return {}
    with as_tenant(TenantId(tenant.id)):
        here = set(Membership.objects.filter(tenant=tenant, user__in=makers).values_list("user_id", flat=True))
    found: dict[int, str] = {}
    refused = dict(
        ProviderMember.objects.filter(user__in=makers).exclude(refused_at=None).values_list("user_id", "refused_at")
    )
    for user in User.objects.filter(id__in=makers, is_staff=False):
        if user.id not in here or not user.is_active:
            found[user.id] = f"made by {user.get_username()}, who has left"
        elif user.id in refused:
            found[user.id] = (
                f"made by {user.get_username()}, whom the sign-in provider has not confirmed since "
                f"{refused[user.id]:%Y-%m-%d %H:%M} UTC"
            )
    return found

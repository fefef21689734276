"""Who made a tenant's keys and has left since: an owner decides whether their keys go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tenants.identity.models import ProviderMember
from tenants.models import ApiKey, Membership, Tenant, User


def present(tenant: Tenant, keys: Iterable[ApiKey]) -> frozenset[int]:
    """Return the ids of those makers of these keys who are members now. Call it inside ``as_tenant``."""
    makers = {key.created_by_id for key in keys if key.created_by_id is not None}
    return frozenset(Membership.objects.filter(tenant=tenant, user__in=makers).values_list("user_id", flat=True))


def notes(keys: Iterable[ApiKey], here: frozenset[int]) -> Mapping[int, str]:
    """Return by user id what an owner should know about makers of these keys; nothing about those who are still here.

    ``here`` is what :func:`present` said. Operators are never members, so nothing is said about them. Call it outside
    ``as_tenant``.
    """
    makers = {key.created_by_id for key in keys if key.created_by_id is not None}
    found: dict[int, str] = {}
    for user in User.objects.filter(id__in=makers, is_staff=False).select_related("provider_member"):
        member: ProviderMember | None = getattr(user, "provider_member", None)
        if user.id not in here or not user.is_active:
            found[user.id] = f"made by {user.get_username()}, who has left"
        elif member is not None and member.refused_at is not None:
            found[user.id] = (
                f"made by {user.get_username()}, whom the sign-in provider has not confirmed since "
                f"{member.refused_at:%Y-%m-%d %H:%M} UTC"
            )
    return found

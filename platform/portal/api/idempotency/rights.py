"""Who used an ``Idempotency-Key``, and with which rights: after they changed, its response is not replayed."""

from __future__ import annotations

from collections.abc import Iterable

from portal.access.principal import Principal
from tenants.ids import TenantId
from tenants.models import Tenant


def name_of(principal: Principal) -> str:
    """Return the name under which a principal's keys are stored: a user, whatever they sign in with, or an API key."""
    if principal.key is not None:
        return f"key {principal.key.id}"
    if principal.user is not None:
        return f"user {principal.user.pk}"
    return principal.actor.name[:64]


def described(principal: Principal, tenant: Tenant | None) -> str:
    """Return what the principal may change, of one tenant if the change is about one: equal if that is equal."""
    held = (principal.tenants, principal.manages, principal.owns, principal.administered, principal.bills)
    confined = {of: _sorted(projects) for of, projects in principal.confined.items()}
    if tenant is not None:
        own = TenantId(tenant.id)
        of_tenant: list[object] = [tenants is None or own in tenants for tenants in held]
        return repr([*of_tenant, confined.get(own), *_of_itself(principal)])
    everywhere = [tenants if tenants is None else _sorted(tenants) for tenants in held]
    return repr([*everywhere, sorted((str(of), projects) for of, projects in confined.items()), *_of_itself(principal)])


def _of_itself(principal: Principal) -> list[object]:
    scopes = None if principal.scopes is None else _sorted(principal.scopes)
    narrowed = [_sorted(principal.allowed_models), _sorted(principal.networks), principal.expires_at]
    return [principal.kind, principal.operator_role, scopes, *narrowed]


def _sorted(values: Iterable[object]) -> list[str]:
    return sorted(map(str, values))

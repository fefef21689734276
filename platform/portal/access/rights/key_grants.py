"""What may be granted to keys that are created or changed. Pages and API both decide it here.

A key grants nothing that it lacks itself, and neither changes nor revokes a key that may do more. A key with the scope
``management:write`` counts as an owner, so only operators, owners, admins and such keys create, change or rotate one.
One with ``management:tenant`` sees the whole tenant, so no developer who is confined to projects does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.access.principal import TENANT_WIDE, WRITE, Principal
from portal.errors import NotPermitted
from tenants import networks
from tenants.keys import keys
from tenants.models import ApiKey, Project, Tenant


def require_grantable(
    principal: Principal, tenant: Tenant, rights: Mapping[str, Any], *, key: ApiKey | None = None
) -> None:
    """Raise NotPermitted if these fields of a key grant more than the principal has; absent fields grant nothing.

    ``key``: the key that is changed or rotated. Raises BadName for an invalid network.
    """
    if key is not None:
        require_own_project(principal, key.project)
    scopes = {*rights.get("scopes", ()), *(key.scopes if key is not None else ())}
    if principal.scopes is None and WRITE in scopes and not principal.administers(tenant.id):
        raise NotPermitted(
            "Only owners and admins of the tenant and operators may create, change or rotate a key with the scope "
            "'management:write'."
        )
    if TENANT_WIDE in scopes and principal.is_confined_in(tenant.id):
        raise NotPermitted(
            f"Your membership is confined to some projects, and a key with the scope {TENANT_WIDE!r} reads the whole "
            "tenant: ask an owner or admin of the tenant."
        )
    if principal.scopes is not None and not principal.scopes.issuperset(rights.get("scopes", ())):
        raise NotPermitted("This key cannot grant a scope that it lacks itself.")
    models = rights.get("allowed_models")
    if principal.allowed_models and models is not None and not (models and principal.allowed_models.issuperset(models)):
        allowed = ", ".join(sorted(principal.allowed_models))
        raise NotPermitted(f"This key can grant only models that it may call itself: {allowed}.")
    allowed_networks = rights.get("allowed_networks")
    if allowed_networks is not None and not networks.within(networks.parse(allowed_networks), principal.networks):
        raise NotPermitted("This key may only grant use from the networks that it may be used from itself.")
    lives_until = rights.get("expires_at", principal.expires_at)
    if principal.expires_at is not None and (lives_until is None or lives_until > principal.expires_at):
        raise NotPermitted(
            f"This key expires at {principal.expires_at.isoformat()}, and a key it creates cannot outlive it."
        )


def require_own_project(principal: Principal, project: Project) -> None:
    """Raise NotPermitted if a developer is confined to other projects than that of a key to make or change."""
    if not principal.may_change_keys_of(project):
        raise NotPermitted(
            f"Your membership is confined to other projects than {project.slug!r}. An owner or admin of the tenant can "
            "change that on its page Members."
        )


def require_no_stronger(principal: Principal, key: ApiKey) -> None:
    """Raise NotPermitted if a key is to be changed or revoked by a key that may do less. Expiry does not count."""
    require_own_project(principal, key.project)
    if not _is_covered(principal, key):
        raise NotPermitted(
            f"The key hk_{key.public_id} may do more than this key, which therefore cannot change or revoke it. Use a "
            "key with the same scopes, models and networks, or ask an owner of the tenant."
        )


def require_no_stronger_in(principal: Principal, project: Project) -> None:
    """Raise NotPermitted if a key would stop, with a project, keys that may do more than itself."""
    if principal.key is not None:
        for key in ApiKey.objects.filter(project=project, revoked_at=None):
            require_no_stronger(principal, key)


def _is_covered(principal: Principal, key: ApiKey) -> bool:
    own = principal.key
    if own is None or key.id == own.id or keys.newest(own).id == key.id:
        return True
    models = principal.allowed_models
    return (
        frozenset(own.scopes).issuperset(key.scopes)
        and (not models or (bool(key.allowed_models) and models.issuperset(key.allowed_models)))
        and networks.within(networks.parse(key.allowed_networks), principal.networks)
    )

"""What may be granted to keys that are created or changed. Pages and API both decide it here.

A key grants nothing that it lacks itself. A key with the scope ``management:write`` counts as an owner of its tenant,
so only operators, owners and such keys create, change or rotate one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portal.access.principal import WRITE, Principal
from portal.errors import NotPermitted
from tenants import networks
from tenants.models import ApiKey, Tenant


def require_grantable(
    principal: Principal, tenant: Tenant, rights: Mapping[str, Any], *, key: ApiKey | None = None
) -> None:
    """Raise NotPermitted if these fields of a key grant more than the principal has; absent fields grant nothing.

    ``key``: the key that is changed or rotated. Raises BadName for an invalid network.
    """
    scopes = {*rights.get("scopes", ()), *(key.scopes if key is not None else ())}
    if principal.scopes is None and WRITE in scopes and not principal.is_owner_of(tenant.id):
        raise NotPermitted(
            "Only owners of the tenant and operators may create, change or rotate a key with the scope "
            "'management:write'."
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

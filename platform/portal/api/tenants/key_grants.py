"""What a key may grant to keys that it creates or changes: nothing that it lacks itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import PermissionDenied

from portal.access.principal import Principal
from tenants import networks


def require_grantable(principal: Principal, rights: Mapping[str, Any]) -> None:
    """Raise PermissionDenied if these fields of a key grant more than the principal has; absent fields grant nothing.

    Raises BadName for an invalid network.
    """
    if principal.scopes is not None and not principal.scopes.issuperset(rights.get("scopes", ())):
        raise PermissionDenied("This key cannot grant a scope that it lacks itself.")
    models = rights.get("allowed_models")
    if principal.allowed_models and models is not None and not (models and principal.allowed_models.issuperset(models)):
        allowed = ", ".join(sorted(principal.allowed_models))
        raise PermissionDenied(f"This key can grant only models that it may call itself: {allowed}.")
    allowed_networks = rights.get("allowed_networks")
    if allowed_networks is not None and not networks.within(networks.parse(allowed_networks), principal.networks):
        raise PermissionDenied("This key may only grant use from the networks that it may be used from itself.")
    lives_until = rights.get("expires_at", principal.expires_at)
    if principal.expires_at is not None and (lives_until is None or lives_until > principal.expires_at):
        raise PermissionDenied(
            f"This key expires at {principal.expires_at.isoformat()}, and a key it creates cannot outlive it."
        )

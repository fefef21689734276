"""What a key that makes or changes keys may give them: nothing that it lacks itself. People are bound by their role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import PermissionDenied

from portal.access.viewer import Viewer
from tenants import networks


def require_grantable(viewer: Viewer, rights: Mapping[str, Any]) -> None:
    """Raise PermissionDenied when these rights, fields of a key, go beyond the viewer's own. Absent ones are not set.

    Raises BadName for a network that is none.
    """
    if viewer.scopes is not None and not viewer.scopes.issuperset(rights.get("scopes", ())):
        raise PermissionDenied("This key cannot grant a scope that it lacks itself.")
    models = rights.get("allowed_models")
    if viewer.allowed_models and models is not None and not (models and viewer.allowed_models.issuperset(models)):
        allowed = ", ".join(sorted(viewer.allowed_models))
        raise PermissionDenied(f"This key can grant only models that it may call itself: {allowed}.")
    asked = rights.get("allowed_networks")
    if asked is not None and not networks.within(networks.parse(asked), viewer.networks):
        raise PermissionDenied("This key can only be used from some networks, and grant use from no others.")
    lives_until = rights.get("expires_at", viewer.expires_at)
    if viewer.expires_at is not None and (lives_until is None or lives_until > viewer.expires_at):
        raise PermissionDenied(
            f"This key expires at {viewer.expires_at.isoformat()}, and no key it grants may outlive it."
        )

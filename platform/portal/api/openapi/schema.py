"""The OpenAPI document: the management API as generated, and the inference API as written by hand."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.permissions import AllowAny

from portal.api.openapi.inference_paths import PATHS
from portal.api.openapi.inference_schemas import SCHEMAS

HOOKS = [
    "drf_spectacular.hooks.postprocess_schema_enums",
    "portal.api.openapi.schema.add_inference",
]
#: Short names for enums whose field names differ between a tenant's policy and its cache settings.
ENUM_NAMES = {
    "CacheModeEnum": "tenants.models.TenantPolicy.CacheMode",
    "CacheScopeEnum": "tenants.models.TenantPolicy.Scope",
}


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe :class:`portal.api.authentication.BearerAuthentication`."""

    target_class = "portal.api.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "An operator's token (ho_…) or a tenant's key (hk_…).",
        }


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describe :class:`portal.api.authentication.PortalSession`."""

    target_class = "portal.api.authentication.PortalSession"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """Return the scheme."""
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "A session of the portal.",
        }


class DocumentView(SpectacularJSONAPIView):
    """The OpenAPI document, which is public."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    custom_settings = {"POSTPROCESSING_HOOKS": HOOKS, "ENUM_NAME_OVERRIDES": ENUM_NAMES}


def add_inference(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the paths of ``/v1``, which the gateway serves. Returns ``result`` itself."""
    result["paths"] |= PATHS
    result["components"]["schemas"] |= SCHEMAS
    return result

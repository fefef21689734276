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
    "CreditRequestKindEnum": "billing.models.credits.CreditRequest.Kind",
    "CreditEntryKindEnum": "billing.models.credits.CreditEntry.Kind",
    "CreditRequestStateEnum": "billing.models.credits.CreditRequest.State",
    "BillingRunKindEnum": "billing.models.runs.BillingRun.Kind",
    "AccountModeEnum": "billing.accounts.account.MODES",
    "CacheModeEnum": "tenants.models.TenantPolicy.CacheMode",
    "CacheScopeEnum": "tenants.models.TenantPolicy.Scope",
    "OperatorRoleEnum": "tenants.models.User.OperatorRole",
    "MemberRoleEnum": "tenants.models.Membership.Role",
    "InvoiceStateEnum": "billing.invoices.states.SHOWN",
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
    """Add the paths of ``/v1``, which the gateway serves, servers and summaries. Returns ``result`` itself."""
    here, gateway = _servers(request)
    for path, item in result["paths"].items():
        for operation in item.values():
            operation.setdefault("summary", _summary(operation["operationId"]))
            operation["tags"] = [_group(path)]
    result["paths"] |= {
        path: {method: {**operation, "servers": gateway} for method, operation in item.items()}
        for path, item in PATHS.items()
    }
    result["components"]["schemas"] |= SCHEMAS
    result["servers"] = here
    return result


def _summary(operation: str) -> str:
    """Return an operation's id as words, for clients that list operations."""
    return operation.replace("_", " ").capitalize()


def _group(path: str) -> str:
    """Return what readers of the reference find an operation under: ``tenants: keys`` for those of a tenant's keys."""
    parts = [part for part in path.removeprefix("/api/v1/").split("/") if not part.startswith("{")]
    nested = parts[:1] == ["tenants"] and len(parts) > 1
    return f"tenants: {parts[1]}" if nested else parts[0]


def _servers(request: Any) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the addresses of the management API and of the gateway, as the request reaches the first.

    Unless HEARTH_API_URL says otherwise, behind a proxy both have one address, and without one the gateway's port is
    the one before the portal's.
    """
    host = request.get_host() if request is not None else f"127.0.0.1:{settings.GATEWAY_PORT + 1}"
    scheme = "https" if request is not None and request.is_secure() else "http"
    name, colon, port = host.rpartition(":")
    direct = bool(colon) and port == str(settings.GATEWAY_PORT + 1)
    gateway = f"{scheme}://{f'{name}:{settings.GATEWAY_PORT}' if direct else host}"
    return (
        [{"url": f"{scheme}://{host}", "description": "Management API"}],
        [{"url": settings.API_URL or gateway, "description": "Inference API"}],
    )

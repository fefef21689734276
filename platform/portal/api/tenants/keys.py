"""``/api/v1/tenants/{tenant}/keys``: a tenant's API keys."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.rights import inherited_bounds
from portal.access.rights.key_grants import require_grantable, require_no_stronger, require_own_project
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.tenants.projects import managed
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import ApiKey
from tenants.networks import MOST_NETWORKS

_MODELS = "Names of the models that it may call; empty: all that the tenant sees."
PURPOSE_PARAMETER = OpenApiParameter(
    "purpose", str, enum=ApiKey.Purpose.values, description="What the keys are for. Default: api."
)
_NETWORKS = "Networks (CIDR) that it may be used from; empty: all."


class KeySerializer(serializers.Serializer[ApiKey]):
    """A key without its secret, which cannot be read again."""

    id = serializers.UUIDField(read_only=True)
    public_id = serializers.CharField(read_only=True, help_text="The public part of the key: hk_<public_id>_…")
    name = serializers.CharField(read_only=True)
    project = serializers.CharField(source="project.slug", read_only=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=keys.SCOPES), read_only=True)
    allowed_models = serializers.ListField(child=serializers.CharField(), read_only=True)
    allowed_networks = serializers.ListField(child=serializers.CharField(), read_only=True)
    rotated_from = serializers.UUIDField(
        source="rotated_from_id", read_only=True, allow_null=True, help_text="The key that this one replaced."
    )
    issuers = serializers.ListField(
        child=serializers.UUIDField(),
        read_only=True,
        help_text="The key that created it, and the keys above that one: their limits and budgets apply to it too.",
    )
    purpose = serializers.ChoiceField(
        choices=ApiKey.Purpose.choices,
        read_only=True,
        help_text="`playground`: the portal's playground made it for a member; it lives for 15 minutes.",
    )
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_used_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="To the minute.")
    created_at = serializers.DateTimeField(read_only=True)


class IssuedKeySerializer(KeySerializer):
    """A new key with its secret, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text="Shown once. Hearth stores only an HMAC of it.")


class ChangedKeySerializer(serializers.Serializer[ApiKey]):
    """Changes of a key; absent fields stay as they are."""

    name = serializers.CharField(max_length=200, required=False)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=keys.SCOPES), allow_empty=False, required=False
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200), help_text=_MODELS, required=False
    )
    allowed_networks = serializers.ListField(
        child=serializers.CharField(max_length=64), max_length=MOST_NETWORKS, help_text=_NETWORKS, required=False
    )
    expires_at = serializers.DateTimeField(allow_null=True, required=False)


class NewKeySerializer(ChangedKeySerializer):
    """A new key."""

    name = serializers.CharField(max_length=200)
    project = serializers.CharField(
        max_length=63,
        default=None,
        allow_null=True,
        help_text="Slug of a project of the tenant. Default: `default`, or the project of the key that creates it.",
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=keys.SCOPES), default=lambda: list(keys.DEFAULT_SCOPES), allow_empty=False
    )
    allowed_models = serializers.ListField(child=serializers.CharField(max_length=200), default=list, help_text=_MODELS)
    allowed_networks = serializers.ListField(
        child=serializers.CharField(max_length=64), max_length=MOST_NETWORKS, default=list, help_text=_NETWORKS
    )
    expires_at = serializers.DateTimeField(default=None, allow_null=True)


class RotationSerializer(serializers.Serializer[ApiKey]):
    """How long the old key works beside the new one."""

    overlap_seconds = serializers.IntegerField(
        min_value=0,
        max_value=int(keys.LONGEST_OVERLAP.total_seconds()),
        default=86400,
        help_text="0: at once.",
    )


class KeysView(ApiView):
    """A tenant's keys."""

    @extend_schema(
        operation_id="list_keys",
        parameters=[*PAGE_PARAMETERS, PURPOSE_PARAMETER],
        responses={200: page_schema(KeySerializer, "KeyList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List keys without secrets, including revoked ones, newest first; those of the playground only if asked for.

        A key that is not tenant-wide sees those of its project.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        page = pagination.page_request(request)
        purpose = request.query_params.get("purpose", ApiKey.Purpose.API)
        if purpose not in ApiKey.Purpose.values:
            raise ValidationError({"purpose": f"Use one of {', '.join(ApiKey.Purpose.values)}."})
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(project_scope.keys_of(principal, found).filter(purpose=purpose), page)
        return Response(pagination.page_document(rows, KeySerializer, page.limit))

    @extend_schema(
        operation_id="create_key",
        request=NewKeySerializer,
        responses={201: IssuedKeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Create a key. Its secret is in this response only.

        A key cannot grant what it lacks itself, and its limits and budgets apply to the keys that it creates.
        """
        principal = principal_of(request)
        found = managed(principal, tenant)
        body = NewKeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted = dict(body.validated_data)
        require_grantable(principal, found, wanted)
        slug = wanted.pop("project") or (principal.project.slug if principal.project else "default")
        project = project_scope.project_of(principal, found, slug)
        require_own_project(principal, project)
        inherited_bounds.require_kept(principal, project)
        issued = keys.issue(principal.actor, project, **wanted)
        return _issued(issued)


class KeyView(ApiView):
    """One key."""

    @extend_schema(operation_id="get_key", responses={200: KeySerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, key: UUID) -> Response:
        """Return the key without its secret."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        with as_tenant(TenantId(found.id)):
            return Response(KeySerializer(project_scope.key_of(principal, found, key)).data)

    @extend_schema(
        operation_id="change_key",
        request=ChangedKeySerializer,
        responses={200: KeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, tenant: str, key: UUID) -> Response:
        """Change the key. Every gateway applies it within a second, also to running streams.

        A key cannot change one with more permissions.
        """
        principal = principal_of(request)
        found = project_scope.key_of(principal, managed(principal, tenant), key)
        body = ChangedKeySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        require_no_stronger(principal, found)
        require_grantable(principal, found.tenant, body.validated_data, key=found)
        return Response(KeySerializer(keys.change(principal.actor, found, **body.validated_data)).data)

    @extend_schema(operation_id="revoke_key", responses={200: KeySerializer, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, key: UUID) -> Response:
        """Revoke the key: every gateway refuses it within a second. Its record stays. Idempotent.

        A key cannot revoke one with more permissions.
        """
        return _revoke(principal_of(request), tenant, key)


class RevokeKeyView(ApiView):
    """Revocation for clients that cannot send DELETE."""

    @extend_schema(
        operation_id="revoke_key_by_post", request=None, responses={200: KeySerializer, **error_responses(403, 404)}
    )
    def post(self, request: Request, tenant: str, key: UUID) -> Response:
        """Revoke the key: every gateway refuses it within a second."""
        return _revoke(principal_of(request), tenant, key)


class RotateKeyView(ApiView):
    """Rotation of a key."""

    @extend_schema(
        operation_id="rotate_key",
        request=RotationSerializer,
        responses={201: IssuedKeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, key: UUID) -> Response:
        """Issue a new key with the same permissions and limits; the old key expires after the overlap.

        The successor of a key that expires has the same lifetime. A key cannot rotate one with more permissions.
        """
        principal = principal_of(request)
        found = project_scope.key_of(principal, managed(principal, tenant), key)
        body = RotationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        fields = ("scopes", "allowed_models", "allowed_networks", "expires_at")
        rights = {field: getattr(found, field) for field in fields}
        require_grantable(principal, found.tenant, rights, key=found)
        inherited_bounds.require_kept(principal, found.project, found)
        overlap = timedelta(seconds=body.validated_data["overlap_seconds"])
        return _issued(keys.rotate(principal.actor, found, overlap))


def _issued(issued: keys.IssuedKey) -> Response:
    document = {**KeySerializer(issued.key).data, "secret": issued.secret}
    return Response(document, status=status.HTTP_201_CREATED)


def _revoke(principal: Principal, tenant: str, key_id: UUID) -> Response:
    found = managed(principal, tenant)
    key = project_scope.key_of(principal, found, key_id)
    require_no_stronger(principal, key)
    return Response(KeySerializer(keys.revoke(principal.actor, key)).data)

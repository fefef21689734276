"""``/api/v1/tenants/{tenant}/keys``: the keys that a tenant's programs call with."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.tenants.key_grants import require_grantable
from portal.api.tenants.projects import managed, project_of
from tenants import keys
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Tenant
from tenants.networks import MOST_NETWORKS
from tenants.rls import as_tenant

_MODELS = "Model names it may call; empty allows all that the tenant sees."
_NETWORKS = "Networks (CIDR) it may be used from; empty allows every address."


class KeySerializer(serializers.Serializer[ApiKey]):
    """A key without its secret, which nobody can read again."""

    id = serializers.UUIDField(read_only=True)
    public_id = serializers.CharField(
        read_only=True, help_text="The part of the key that may be shown: hk_<public_id>_…"
    )
    name = serializers.CharField(read_only=True)
    project = serializers.CharField(source="project.slug", read_only=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=keys.SCOPES), read_only=True)
    allowed_models = serializers.ListField(child=serializers.CharField(), read_only=True)
    allowed_networks = serializers.ListField(child=serializers.CharField(), read_only=True)
    rotated_from = serializers.UUIDField(
        source="rotated_from_id", read_only=True, allow_null=True, help_text="The key that it was made to replace."
    )
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_used_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="To the minute.")
    created_at = serializers.DateTimeField(read_only=True)


class IssuedKeySerializer(KeySerializer):
    """A new key and, this once, its secret."""

    secret = serializers.CharField(read_only=True, help_text="Shown once. Hearth keeps only an HMAC of it.")


class ChangedKeySerializer(serializers.Serializer[ApiKey]):
    """What a key may do; what is absent stays."""

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
    """What a new key may do."""

    name = serializers.CharField(max_length=200)
    project = serializers.CharField(max_length=63, default="default", help_text="Slug of a project of the tenant.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=keys.SCOPES), default=lambda: list(keys.DEFAULT_SCOPES), allow_empty=False
    )
    allowed_models = serializers.ListField(child=serializers.CharField(max_length=200), default=list, help_text=_MODELS)
    allowed_networks = serializers.ListField(
        child=serializers.CharField(max_length=64), max_length=MOST_NETWORKS, default=list, help_text=_NETWORKS
    )
    expires_at = serializers.DateTimeField(default=None, allow_null=True)


class RotationSerializer(serializers.Serializer[ApiKey]):
    """How long the old key goes on working beside the new one."""

    overlap_seconds = serializers.IntegerField(
        min_value=0, max_value=int(keys.LONGEST_OVERLAP.total_seconds()), default=86400, help_text="0: not at all."
    )


class KeysView(APIView):
    """A tenant's keys."""

    @extend_schema(
        operation_id="list_keys",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(KeySerializer, "KeyList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List keys, revoked ones included, newest first. Never their secrets."""
        found = tenant_for(principal_of(request), tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(ApiKey.objects.filter(tenant=found).select_related("project"), page)
        return Response(pagination.page_document(rows, KeySerializer, page.limit))

    @extend_schema(
        operation_id="create_key",
        request=NewKeySerializer,
        responses={201: IssuedKeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Create a key. Its secret is in this answer only. A key grants nothing that it lacks."""
        principal = principal_of(request)
        found = managed(principal, tenant)
        asked = NewKeySerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        wanted = dict(asked.validated_data)
        require_grantable(principal, wanted)
        project = project_of(found, wanted.pop("project"))
        issued = keys.issue(principal.actor, project, created_by=principal.user, **wanted)
        return _issued(issued)


class KeyView(APIView):
    """One key."""

    @extend_schema(operation_id="get_key", responses={200: KeySerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, key: UUID) -> Response:
        """Return the key without its secret."""
        found = tenant_for(principal_of(request), tenant)
        with as_tenant(TenantId(found.id)):
            return Response(KeySerializer(key_of(found, key)).data)

    @extend_schema(
        operation_id="change_key",
        request=ChangedKeySerializer,
        responses={200: KeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, tenant: str, key: UUID) -> Response:
        """Change what the key may do; in force at every gateway within a second, for streams that run too."""
        principal = principal_of(request)
        found = key_of(managed(principal, tenant), key)
        asked = ChangedKeySerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        require_grantable(principal, asked.validated_data)
        return Response(KeySerializer(keys.change(principal.actor, found, **asked.validated_data)).data)

    @extend_schema(operation_id="revoke_key", responses={200: KeySerializer, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, key: UUID) -> Response:
        """Refuse the key everywhere within a second. Its row stays. Doing it twice changes nothing."""
        return _revoke(principal_of(request), tenant, key)


class RevokeKeyView(APIView):
    """The same as DELETE, for clients that cannot send it."""

    @extend_schema(
        operation_id="revoke_key_by_post", request=None, responses={200: KeySerializer, **error_responses(403, 404)}
    )
    def post(self, request: Request, tenant: str, key: UUID) -> Response:
        """Refuse the key everywhere within a second."""
        return _revoke(principal_of(request), tenant, key)


class RotateKeyView(APIView):
    """A successor for a key."""

    @extend_schema(
        operation_id="rotate_key",
        request=RotationSerializer,
        responses={201: IssuedKeySerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, key: UUID) -> Response:
        """Issue a key that may do the same and has the same limits; the old one expires after the overlap.

        A key that expires gets a successor with as long a life. A key rotates none that may do more than itself.
        """
        principal = principal_of(request)
        found = key_of(managed(principal, tenant), key)
        asked = RotationSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        fields = ("scopes", "allowed_models", "allowed_networks", "expires_at")
        rights = {field: getattr(found, field) for field in fields}
        require_grantable(principal, rights)
        overlap = timedelta(seconds=asked.validated_data["overlap_seconds"])
        return _issued(keys.rotate(principal.actor, found, overlap, created_by=principal.user))


def key_of(tenant: Tenant, key_id: UUID) -> ApiKey:
    """Return a key of this tenant. Raises NotFound, also for one of another tenant."""
    found = ApiKey.objects.filter(tenant=tenant, id=key_id).select_related("project", "tenant").first()
    if found is None:
        raise NotFound("key", str(key_id))
    return found


def _issued(issued: keys.IssuedKey) -> Response:
    document = {**KeySerializer(issued.key).data, "secret": issued.secret}
    return Response(document, status=status.HTTP_201_CREATED)


def _revoke(principal: Principal, tenant: str, key_id: UUID) -> Response:
    found = managed(principal, tenant)
    revoked = keys.revoke(principal.actor, key_of(found, key_id))
    return Response(KeySerializer(revoked).data)

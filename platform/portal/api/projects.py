"""``/api/v1/tenants/{tenant}/projects`` and ``…/keys``: a tenant's divisions, and the keys they call with."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access import Viewer, tenant_for
from portal.api import pagination
from portal.api.authentication import viewer_of
from portal.api.documents import PAGE_PARAMETERS, page_of, refusals
from tenants import keys, registry
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant
from tenants.rls import as_tenant

DEFAULT_SCOPES = ("inference", "management:read")


class ProjectSerializer(serializers.Serializer[Project]):
    """A project. ``slug`` is unique within the tenant."""

    id = serializers.UUIDField(read_only=True)
    slug = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=200)
    archived_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


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
    expires_at = serializers.DateTimeField(read_only=True, allow_null=True)
    revoked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    last_used_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


class IssuedKeySerializer(KeySerializer):
    """A new key and, this once, its secret."""

    secret = serializers.CharField(read_only=True, help_text="Shown once. Hearth keeps only an HMAC of it.")


class NewKeySerializer(serializers.Serializer[ApiKey]):
    """What a new key may do."""

    name = serializers.CharField(max_length=200)
    project = serializers.CharField(max_length=63, default="default", help_text="Slug of a project of the tenant.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=keys.SCOPES), default=lambda: list(DEFAULT_SCOPES), allow_empty=False
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200),
        default=list,
        help_text="Model names it may call; empty allows all that the tenant sees.",
    )
    expires_at = serializers.DateTimeField(default=None, allow_null=True)


class ProjectsView(APIView):
    """A tenant's projects."""

    @extend_schema(
        operation_id="list_projects",
        parameters=PAGE_PARAMETERS,
        responses={200: page_of(ProjectSerializer, "ProjectList"), **refusals(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List projects, newest first."""
        found = tenant_for(viewer_of(request), tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.slice_of(Project.objects.filter(tenant=found), page)
        return Response(pagination.document(rows, ProjectSerializer, page.limit))

    @extend_schema(
        operation_id="create_project",
        request=ProjectSerializer,
        responses={201: ProjectSerializer, **refusals(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Create a project. Operators, owners and developers, and keys with the scope `management:write`."""
        viewer = viewer_of(request)
        found = _managed(viewer, tenant)
        asked = ProjectSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        project = registry.create_project(viewer.actor, found, **asked.validated_data)
        return Response(ProjectSerializer(project).data, status=status.HTTP_201_CREATED)


class KeysView(APIView):
    """A tenant's keys."""

    @extend_schema(
        operation_id="list_keys",
        parameters=PAGE_PARAMETERS,
        responses={200: page_of(KeySerializer, "KeyList"), **refusals(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List keys, revoked ones included, newest first. Never their secrets."""
        found = tenant_for(viewer_of(request), tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.slice_of(ApiKey.objects.filter(tenant=found).select_related("project"), page)
        return Response(pagination.document(rows, KeySerializer, page.limit))

    @extend_schema(
        operation_id="create_key",
        request=NewKeySerializer,
        responses={201: IssuedKeySerializer, **refusals(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Create a key. Its secret is in this answer and nowhere else. A key grants no scope or model that it lacks."""
        viewer = viewer_of(request)
        found = _managed(viewer, tenant)
        asked = NewKeySerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        wanted = asked.validated_data
        if viewer.scopes is not None and not viewer.scopes.issuperset(wanted["scopes"]):
            raise PermissionDenied("This key cannot grant a scope that it lacks itself.")
        models = frozenset(wanted["allowed_models"])
        if viewer.allowed_models and not (models and models <= viewer.allowed_models):
            allowed = ", ".join(sorted(viewer.allowed_models))
            raise PermissionDenied(f"This key can grant only models that it may call itself: {allowed}.")
        issued = keys.issue(
            viewer.actor,
            project_of(found, wanted["project"]),
            name=wanted["name"],
            scopes=wanted["scopes"],
            allowed_models=wanted["allowed_models"],
            expires_at=wanted["expires_at"],
            created_by=viewer.user,
        )
        return Response({**KeySerializer(issued.key).data, "secret": issued.secret}, status=status.HTTP_201_CREATED)


class KeyView(APIView):
    """One key."""

    @extend_schema(operation_id="get_key", responses={200: KeySerializer, **refusals(404)})
    def get(self, request: Request, tenant: str, key: UUID) -> Response:
        """Return the key without its secret."""
        found = tenant_for(viewer_of(request), tenant)
        with as_tenant(TenantId(found.id)):
            return Response(KeySerializer(key_of(found, key)).data)

    @extend_schema(operation_id="revoke_key", responses={200: KeySerializer, **refusals(403, 404)})
    def delete(self, request: Request, tenant: str, key: UUID) -> Response:
        """Refuse the key everywhere within a second. Its row stays. Doing it twice changes nothing."""
        return _revoke(viewer_of(request), tenant, key)


class RevokeKeyView(APIView):
    """The same as DELETE, for clients that cannot send it."""

    @extend_schema(
        operation_id="revoke_key_by_post", request=None, responses={200: KeySerializer, **refusals(403, 404)}
    )
    def post(self, request: Request, tenant: str, key: UUID) -> Response:
        """Refuse the key everywhere within a second."""
        return _revoke(viewer_of(request), tenant, key)


def project_of(tenant: Tenant, slug: str) -> Project:
    """Return a project of this tenant. Raises NotFound, also for one of another tenant."""
    found = Project.objects.filter(tenant=tenant, slug=slug).select_related("tenant").first()
    if found is None:
        raise NotFound("project", slug)
    return found


def key_of(tenant: Tenant, key_id: UUID) -> ApiKey:
    """Return a key of this tenant. Raises NotFound, also for one of another tenant."""
    found = ApiKey.objects.filter(tenant=tenant, id=key_id).select_related("project", "tenant").first()
    if found is None:
        raise NotFound("key", str(key_id))
    return found


def _managed(viewer: Viewer, tenant: str) -> Tenant:
    """Return the tenant if this viewer may change its keys. Raises NotFound first, then PermissionDenied."""
    found = tenant_for(viewer, tenant)
    if not viewer.may_manage(found.id):
        raise PermissionDenied("Your role, or this key's scopes, do not allow changes.")
    return found


def _revoke(viewer: Viewer, tenant: str, key_id: UUID) -> Response:
    found = _managed(viewer, tenant)
    revoked = keys.revoke(viewer.actor, key_of(found, key_id))
    return Response(KeySerializer(revoked).data)

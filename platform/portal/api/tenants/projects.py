"""``/api/v1/tenants/{tenant}/projects``: the projects that a tenant's keys and usage belong to."""

from __future__ import annotations

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.rights import inherited_bounds
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import cost_centre_field
from tenants import cost_centres, registry
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Project, Tenant


class ProjectSerializer(serializers.Serializer[Project]):
    """A project. ``slug`` is unique within the tenant."""

    id = serializers.UUIDField(read_only=True)
    slug = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=200)
    cost_centre = cost_centre_field("Of its usage; empty: the tenant's.")
    archived_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(read_only=True)


class ChangeProjectSerializer(serializers.Serializer[Project]):
    """Changes of a project; what is absent stays."""

    name = serializers.CharField(max_length=registry.LONGEST_NAME, required=False)
    cost_centre = cost_centre_field("Of its usage; empty: the tenant's.")


class ProjectsView(ApiView):
    """A tenant's projects."""

    @extend_schema(
        operation_id="list_projects",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ProjectSerializer, "ProjectList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List projects, newest first. A key that is not tenant-wide sees its own."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(project_scope.projects_of(principal, found), page)
        return Response(pagination.page_document(rows, ProjectSerializer, page.limit))

    @extend_schema(
        operation_id="create_project",
        request=ProjectSerializer,
        responses={201: ProjectSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Create a project.

        For operators, owners, and tenant-wide keys with the scope `management:write` that no limit or budget set by an
        owner or operator binds.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        inherited_bounds.require_may_create_project(principal, found)
        body = ProjectSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        cost_centre = body.validated_data.pop("cost_centre", "")
        with transaction.atomic():
            project = registry.create_project(principal.actor, found, **body.validated_data)
            project = cost_centres.set_of_project(principal.actor, project, cost_centre)
        return Response(ProjectSerializer(project).data, status=status.HTTP_201_CREATED)


class ProjectView(ApiView):
    """One project."""

    @extend_schema(
        operation_id="change_project",
        request=ChangeProjectSerializer,
        responses={200: ProjectSerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, tenant: str, project: str) -> Response:
        """Rename the project, or set its cost centre. The slug stays.

        Reports use the cost centre for usage of any time; journal and FOCUS export of closed months keep theirs.
        For operators, owners and admins, and tenant-wide keys with the scope `management:write`.
        """
        principal = principal_of(request)
        found = project_scope.project_of(principal, tenant_for(principal, tenant), project)
        inherited_bounds.require_may_change_projects(principal, found.tenant)
        body = ChangeProjectSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        with transaction.atomic():
            if "name" in body.validated_data:
                found = registry.rename_project(principal.actor, found, body.validated_data["name"])
            if "cost_centre" in body.validated_data:
                found = cost_centres.set_of_project(principal.actor, found, body.validated_data["cost_centre"])
        return Response(ProjectSerializer(found).data)


class ArchiveProjectView(ApiView):
    """Archive a project."""

    @extend_schema(
        operation_id="archive_project",
        request=None,
        responses={200: ProjectSerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, project: str) -> Response:
        """Archive the project: its keys are refused within a second, its usage stays.

        For operators, owners, and tenant-wide keys with the scope `management:write`.
        """
        return _set_archived(request, tenant, project, True)


class RestoreProjectView(ApiView):
    """Restore an archived project."""

    @extend_schema(
        operation_id="restore_project",
        request=None,
        responses={200: ProjectSerializer, **error_responses(403, 404, 409)},
    )
    def post(self, request: Request, tenant: str, project: str) -> Response:
        """Accept the keys of an archived project again."""
        return _set_archived(request, tenant, project, False)


def _set_archived(request: Request, tenant: str, project: str, archived: bool) -> Response:
    principal = principal_of(request)
    found = project_scope.project_of(principal, tenant_for(principal, tenant), project)
    inherited_bounds.require_may_archive(principal, found)
    return Response(ProjectSerializer(registry.set_project_archived(principal.actor, found, archived)).data)


def managed(principal: Principal, tenant: str) -> Tenant:
    """Return a tenant whose projects and keys this principal may change. Raises NotFound, PermissionDenied."""
    found = tenant_for(principal, tenant)
    if not principal.may_manage(found.id):
        raise PermissionDenied("Your role or this key's scopes do not allow changes.")
    return found

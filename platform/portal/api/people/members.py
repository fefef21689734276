"""``/api/v1/tenants/{tenant}/members``: the people of a tenant and their roles."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import project_scope
from portal.access.principal import tenant_for
from portal.access.rights import member_rights
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from tenants import members
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Membership, Project, Tenant


class ChangedMemberSerializer(serializers.Serializer[Membership]):
    """A member's role and projects."""

    role = serializers.ChoiceField(Membership.Role.choices)
    projects = serializers.ListField(
        child=serializers.CharField(max_length=63),
        max_length=100,
        required=False,
        write_only=True,
        help_text="Slugs of the projects whose keys a developer may make and change; empty: all. Absent: unchanged.",
    )


class MemberSerializer(serializers.Serializer[Membership]):
    """A member of a tenant."""

    person = serializers.CharField(source="user.username", help_text="The sign-in name.")
    email = serializers.CharField(source="user.email")
    role = serializers.CharField()
    projects = serializers.SerializerMethodField(
        help_text="Slugs of those that a developer is confined to, and so sees alone; empty: all."
    )
    last_login = serializers.DateTimeField(source="user.last_login", allow_null=True)

    def get_projects(self, member: Membership) -> list[str]:
        """Return the slugs."""
        slugs: dict[Any, str] = self.context["slugs"]
        return sorted(slugs[each] for each in member.project_ids if each in slugs)


class MemberListSerializer(serializers.Serializer[Any]):
    """All members by name."""

    members = MemberSerializer(many=True, read_only=True)


class MembersView(ApiView):
    """The members of a tenant."""

    @extend_schema(operation_id="list_members", responses={200: MemberListSerializer, **error_responses(403, 404)})
    def get(self, request: Request, tenant: str) -> Response:
        """List the members. For operators, and owners and admins of the tenant."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        member_rights.require(principal, found)
        context = {"slugs": _slugs(found)}
        return Response({"members": [MemberSerializer(each, context=context).data for each in members.of(found)]})


class MemberView(ApiView):
    """One member."""

    @extend_schema(
        operation_id="set_member",
        request=ChangedMemberSerializer,
        responses={200: MemberSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str, person: str) -> Response:
        """Change a member's role and projects. For operators, and owners and admins of the tenant.

        Only owners and operators decide about owners. Only operators make somebody a member here; others invite.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        member_rights.require(principal, found)
        body = ChangedMemberSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        with transaction.atomic():
            member = member_rights.put(principal, found, person, body.validated_data["role"])
            if (slugs := body.validated_data.get("projects")) is not None:
                projects = [project_scope.project_of(principal, found, slug) for slug in slugs]
                member = member_rights.confine(principal, found, person, projects)
        return Response(MemberSerializer(member, context={"slugs": _slugs(found)}).data)

    @extend_schema(operation_id="remove_member", responses={204: None, **error_responses(403, 404, 409)})
    def delete(self, request: Request, tenant: str, person: str) -> Response:
        """Remove a member; the keys that they made stay. The last owner cannot be removed."""
        principal = principal_of(request)
        member_rights.remove(principal, tenant_for(principal, tenant), person)
        return Response(status=204)


def _slugs(tenant: Tenant) -> dict[Any, str]:
    with as_tenant(TenantId(tenant.id)):
        return dict(Project.objects.filter(tenant=tenant).values_list("id", "slug"))

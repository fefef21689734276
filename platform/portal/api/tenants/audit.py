"""``/api/v1/audit``: the audit log, which is append-only."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import audit_actors, project_scope, tenant_reads
from portal.access.principal import Principal, tenant_for
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, PERIOD_PARAMETERS, error_responses, page_schema
from portal.formats import query_params
from portal.reporting import periods
from tenants.database.rls import as_tenant
from tenants.ids import TenantId, first_id_at
from tenants.models import AuditEntry, Tenant


class AuditSerializer(serializers.Serializer[AuditEntry]):
    """One change."""

    id = serializers.UUIDField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    actor_kind = serializers.ChoiceField(choices=AuditEntry.ActorKind.choices, read_only=True)
    actor = serializers.CharField(
        source="shown_actor",
        read_only=True,
        help_text="User name, public id of a key, or name of a job. `operator` in place of an operator's name, except "
        "for operators.",
    )
    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)
    action = serializers.CharField(read_only=True)
    object_kind = serializers.CharField(read_only=True)
    object_id = serializers.CharField(read_only=True)
    before = serializers.JSONField(read_only=True, allow_null=True)
    after = serializers.JSONField(read_only=True, allow_null=True)
    request_id = serializers.UUIDField(read_only=True, allow_null=True)


class AuditView(ApiView):
    """The audit log."""

    @extend_schema(
        operation_id="list_audit_entries",
        parameters=[
            OpenApiParameter("tenant", str, description="Slug or id of a tenant."),
            OpenApiParameter("action", str, description="For example `key.issued`."),
            OpenApiParameter("actor", str, description="As entries show it."),
            *PERIOD_PARAMETERS,
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(AuditSerializer, "AuditList"), **error_responses(400, 404)},
    )
    def get(self, request: Request) -> Response:
        """List entries, newest first; without a period, all of them.

        A key that is not tenant-wide sees the changes of its project, the project's keys, and their limits and budgets.
        """
        page = pagination.page_request(request)
        query = request.query_params
        principal, named = principal_of(request), query_params.text(query, "tenant")
        chosen: dict[str, Any] = {
            field: value
            for name, field in (("action", "action"), ("actor", "shown_actor"))
            if (value := query_params.text(query, name))
        }
        if {"period", "from", "to"} & set(query):
            period = periods.parse(query, timezone.now())
            chosen |= {"id__gte": first_id_at(period.start), "id__lt": first_id_at(period.end)}
        tenant = tenant_for(principal, named) if named else None
        actor = audit_actors.shown_actor(principal)

        def read_page() -> list[AuditEntry]:
            found = entries(principal, tenant).annotate(shown_actor=actor)
            return pagination.read_page(found.filter(**chosen), page)

        if tenant is None:
            found = tenant_reads.newest(principal, read_page, page.limit + 1)
        else:
            with as_tenant(TenantId(tenant.id)):
                found = read_page()
        return Response(pagination.page_document(found, AuditSerializer, page.limit))


def entries(principal: Principal, tenant: Tenant | None = None) -> QuerySet[AuditEntry]:
    """Return the entries that this principal sees, optionally of one tenant."""
    rows = AuditEntry.objects.select_related("tenant")
    if tenant is not None:
        return project_scope.audit_entries(principal, rows.filter(tenant=tenant))
    if principal.tenants is None:
        return rows
    return project_scope.audit_entries(principal, rows.filter(tenant_id__in=principal.tenants))

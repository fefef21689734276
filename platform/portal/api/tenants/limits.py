"""``/api/v1/tenants/{tenant}/limits``: the rate limits of a tenant, its projects and its keys."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access.principal import Principal, tenant_for
from portal.access.rights import limit_permissions
from portal.access.rights.limit_permissions import TargetNames
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import IdField
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import BoundSetter, Limit, Tenant
from tenants.policy import limits
from tenants.policy.limits import LARGEST, LimitValues

SET_BY_HELP = "Nobody below changes or removes it: an operator is above owners of the tenant, they above its keys."


class TargetSerializer(serializers.Serializer[Limit]):
    """The target: a project, a key, or without both the whole tenant; for one model or all models together."""

    project = serializers.CharField(
        source="project.slug", max_length=63, default=None, allow_null=True, help_text="Slug; null for none."
    )
    key = IdField(source="key_id", default=None, allow_null=True, help_text="Id; null for none.")
    model = serializers.CharField(
        source="model_name", max_length=200, default="", allow_blank=True, help_text="Empty for all models together."
    )


class LimitSerializer(TargetSerializer):
    """A limit. For each value, null is unlimited and 0 admits nothing. All matching limits apply to a request."""

    id = serializers.UUIDField(read_only=True)
    requests_per_minute = serializers.IntegerField(
        min_value=0, max_value=LARGEST["requests_per_minute"], default=None, allow_null=True
    )
    tokens_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["tokens_per_minute"],
        default=None,
        allow_null=True,
        help_text="Prompt and completion together: an estimate is reserved, then replaced by the actual usage.",
    )
    concurrent_requests = serializers.IntegerField(
        min_value=0, max_value=LARGEST["concurrent_requests"], default=None, allow_null=True
    )
    set_by = serializers.ChoiceField(choices=BoundSetter.choices, read_only=True, help_text=SET_BY_HELP)
    created_at = serializers.DateTimeField(read_only=True)


class LimitsView(ApiView):
    """A tenant's limits."""

    @extend_schema(
        operation_id="list_limits",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(LimitSerializer, "LimitList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the limits of the tenant, its projects and its keys, newest first.

        A key that is not tenant-wide sees those of its project and the project's keys.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(limit_permissions.limits_of(principal, found), page)
        return Response(pagination.page_document(rows, LimitSerializer, page.limit))

    @extend_schema(
        operation_id="set_limit",
        request=LimitSerializer,
        responses={200: LimitSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Set the limit of a tenant, project or key, replacing its current one. It applies within a second.

        Operators set any limit; owners and keys with the scope `management:write` set those of projects and keys.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = LimitSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        limit = limits.set_limit(
            principal.actor,
            limit_permissions.target_for(principal, found, target_names(body.validated_data)),
            LimitValues(**{name: body.validated_data[name] for name in LARGEST}),
        )
        return Response(LimitSerializer(limit).data)


class LimitView(ApiView):
    """One limit."""

    @extend_schema(operation_id="get_limit", responses={200: LimitSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, limit: UUID) -> Response:
        """Return the limit."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        with as_tenant(TenantId(found.id)):
            return Response(LimitSerializer(_limit(principal, found, limit)).data)

    @extend_schema(operation_id="remove_limit", responses={204: None, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, limit: UUID) -> Response:
        """Remove the limit; every gateway applies it within a second."""
        principal = principal_of(request)
        found = _limit(principal, tenant_for(principal, tenant), limit)
        limit_permissions.require_may_change(principal, found)
        limits.remove(principal.actor, found)
        return Response(status=status.HTTP_204_NO_CONTENT)


def target_names(fields: dict[str, object]) -> TargetNames:
    """Return the target that validated input names."""
    project, key = fields["project"], fields["key_id"]
    return TargetNames(
        project=project["slug"] if isinstance(project, dict) else None,
        key=key if isinstance(key, UUID) else None,
        model=str(fields["model_name"]),
    )


def _limit(principal: Principal, tenant: Tenant, limit_id: UUID) -> Limit:
    return limit_permissions.rule_of(tenant, limit_permissions.limits_of(principal, tenant), "limit", limit_id)

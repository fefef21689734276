"""``/api/v1/tenants``: who is served, and under which policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access.principal import tenant_for, tenants_of
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from tenants import registry
from tenants.models import Tenant, TenantPolicy
from tenants.registry import LARGEST


class PolicySerializer(serializers.Serializer[TenantPolicy]):
    """The policy in force. A change makes a new version."""

    version = serializers.IntegerField(read_only=True)
    cache_mode = serializers.ChoiceField(
        choices=TenantPolicy.CacheMode.choices,
        required=False,
        help_text="Which whole answers the prediction cache keeps: off, deterministic (temperature 0 or a seed), all.",
    )
    cache_ttl_seconds = serializers.IntegerField(
        min_value=0, max_value=LARGEST["cache_ttl_seconds"], required=False, help_text="0: nothing is stored."
    )
    cache_entry_bytes = serializers.IntegerField(
        min_value=0, max_value=LARGEST["cache_entry_bytes"], required=False, help_text="Of one stored answer."
    )
    cache_quota_bytes = serializers.IntegerField(
        min_value=0, max_value=LARGEST["cache_quota_bytes"], required=False, help_text="Of all stored answers together."
    )
    cache_writes_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["cache_writes_per_minute"],
        required=False,
        allow_null=True,
        help_text="Answers that one key may store in a minute; null is unlimited.",
    )
    cache_scope = serializers.ChoiceField(choices=TenantPolicy.Scope.choices, required=False)
    salt_epoch = serializers.IntegerField(
        min_value=1,
        max_value=LARGEST["salt_epoch"],
        required=False,
        help_text="A new epoch empties the tenant's prefix cache on every engine, and its prediction cache.",
    )
    created_at = serializers.DateTimeField(read_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantWithPolicy:
    """A tenant and the policy in force."""

    tenant: Tenant
    policy: TenantPolicy

    @property
    def id(self) -> UUID:
        """The tenant's id, by which lists are paged."""
        return self.tenant.id


class TenantSerializer(serializers.Serializer[TenantWithPolicy]):
    """A tenant with its policy."""

    id = serializers.UUIDField(source="tenant.id", read_only=True)
    slug = serializers.CharField(source="tenant.slug", read_only=True)
    name = serializers.CharField(source="tenant.name", read_only=True)
    state = serializers.ChoiceField(source="tenant.state", choices=Tenant.State.choices, read_only=True)
    currency = serializers.CharField(source="tenant.currency", read_only=True)
    billing_timezone = serializers.CharField(source="tenant.billing_timezone", read_only=True)
    created_at = serializers.DateTimeField(source="tenant.created_at", read_only=True)
    policy = PolicySerializer(read_only=True)


class NewTenantSerializer(serializers.Serializer[Tenant]):
    """What a new tenant needs; the policy's absent fields take their defaults."""

    slug = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=200)
    policy = PolicySerializer(required=False)


class TenantsView(APIView):
    """The tenants you see."""

    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="list_tenants",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(TenantSerializer, "TenantList"), **error_responses(400)},
    )
    def get(self, request: Request) -> Response:
        """List tenants, newest first."""
        page = pagination.page_request(request)
        rows = pagination.read_page(tenants_of(principal_of(request)), page)
        return Response(pagination.page_document(with_policies(rows), TenantSerializer, page.limit))

    @extend_schema(
        operation_id="create_tenant",
        request=NewTenantSerializer,
        responses={201: TenantSerializer, **error_responses(400, 403, 409)},
    )
    def post(self, request: Request) -> Response:
        """Create a tenant with a project named `default`. Operators only."""
        asked = NewTenantSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        tenant = registry.create_tenant(
            principal_of(request).actor,
            slug=asked.validated_data["slug"],
            name=asked.validated_data["name"],
            policy=registry.Policy(**asked.validated_data.get("policy", {})),
        )
        return Response(read(tenant), status=status.HTTP_201_CREATED)


class TenantView(APIView):
    """One tenant, by slug or id."""

    permission_classes = (OperatorChanges,)

    @extend_schema(operation_id="get_tenant", responses={200: TenantSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return the tenant and the policy in force."""
        return Response(read(tenant_for(principal_of(request), tenant)))

    @extend_schema(
        operation_id="change_policy",
        request=PolicySerializer,
        responses={200: TenantSerializer, **error_responses(400, 403, 404)},
    )
    def patch(self, request: Request, tenant: str) -> Response:
        """Change policy fields; in force at every gateway within a second. Operators only."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        asked = PolicySerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        registry.set_policy(principal.actor, found, **asked.validated_data)
        return Response(read(found))


class SuspendView(APIView):
    """Stop serving a tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="suspend_tenant", request=None, responses={200: TenantSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Refuse every request of the tenant within a second; nothing is deleted."""
        principal = principal_of(request)
        return Response(read(registry.suspend(principal.actor, tenant_for(principal, tenant))))


class ResumeView(APIView):
    """Serve a suspended tenant again."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="resume_tenant", request=None, responses={200: TenantSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Serve the tenant again."""
        principal = principal_of(request)
        return Response(read(registry.resume(principal.actor, tenant_for(principal, tenant))))


def read(tenant: Tenant) -> Any:
    """Return one tenant's document."""
    return TenantSerializer(with_policies([tenant])[0]).data


def with_policies(tenants: Sequence[Tenant]) -> list[TenantWithPolicy]:
    """Return the tenants with their policies, which take one query for all."""
    policies: dict[UUID, TenantPolicy] = {
        policy.tenant_id: policy
        for policy in TenantPolicy.objects.filter(tenant__in=tenants)
        .order_by("tenant_id", "-version")
        .distinct("tenant_id")
    }
    return [TenantWithPolicy(tenant=tenant, policy=policies[tenant.id]) for tenant in tenants]

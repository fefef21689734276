"""``/api/v1/tenants``: tenants and their policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import tenant_reads
from portal.access.principal import tenant_for, tenants_of
from portal.api import pagination
from portal.api.authentication import OperatorChanges, OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import cost_centre_field
from portal.errors import BadQuery
from portal.formats import query_params
from tenants import cost_centres, registry
from tenants.caller_limits import LONGEST_HEADER_NAME, MOST_SESSION_HEADERS
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant, TenantPolicy
from tenants.registry import LARGEST, LONGEST_REGION, MOST_REGIONS, SMALLEST
from workers.fleet import pools

COST_CENTRE = "Of usage of its projects without their own; empty: none."


class PolicySerializer(serializers.Serializer[TenantPolicy]):
    """The current policy. A change makes a new version."""

    version = serializers.IntegerField(read_only=True)
    cache_mode = serializers.ChoiceField(
        choices=TenantPolicy.CacheMode.choices,
        required=False,
        help_text="Answers that the prediction cache stores; deterministic: temperature 0, top_k 1 or a seed.",
    )
    cache_ttl_seconds = serializers.IntegerField(
        min_value=0, max_value=LARGEST["cache_ttl_seconds"], required=False, help_text="0: nothing is stored."
    )
    cache_entry_bytes = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["cache_entry_bytes"],
        required=False,
        help_text="The largest answer stored.",
    )
    cache_quota_bytes = serializers.IntegerField(
        min_value=0, max_value=LARGEST["cache_quota_bytes"], required=False, help_text="All stored answers together."
    )
    cache_writes_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["cache_writes_per_minute"],
        required=False,
        allow_null=True,
        help_text="Answers that one key may store per minute; null is unlimited.",
    )
    cache_scope = serializers.ChoiceField(choices=TenantPolicy.Scope.choices, required=False)
    salt_epoch = serializers.IntegerField(
        min_value=1,
        max_value=LARGEST["salt_epoch"],
        required=False,
        help_text="A new epoch empties the tenant's prediction cache, and its prefix cache on every engine.",
    )
    queue_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["queue_seconds"],
        required=False,
        help_text="Longest time that a request waits for a replica; 0: none waits.",
    )
    queue_requests = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["queue_requests"],
        required=False,
        help_text="Requests that wait for a replica in each gateway process; further ones get 503 `too_many_held`.",
    )
    queue_bytes = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["queue_bytes"],
        required=False,
        help_text="Bodies of these requests together, in each gateway process.",
    )
    idempotency_bytes_per_hour = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["idempotency_bytes_per_hour"],
        required=False,
        help_text="Responses to requests with an Idempotency-Key that are stored in an hour, compressed, and four "
        "times as much in 24 hours; then new keys are refused.",
    )
    session_headers = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_HEADER_NAME),
        max_length=MOST_SESSION_HEADERS,
        required=False,
        help_text="Request headers that name a session; the first one present counts. Empty: none does.",
    )
    session_ttl_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["session_ttl_seconds"],
        required=False,
        help_text="A session without a request for longer has no home; 0: no request belongs to a session.",
    )
    session_affinity = serializers.ChoiceField(
        choices=TenantPolicy.SessionAffinity.choices,
        required=False,
        help_text="cheapest: a session's request runs where that costs everybody least, usually at its home; strict: "
        "at its home while that is ready.",
    )
    priority = serializers.ChoiceField(
        choices=TenantPolicy.Priority.choices,
        required=False,
        help_text="While every replica is full, waiting requests of a higher class are served first.",
    )
    weight = serializers.IntegerField(
        min_value=SMALLEST["weight"],
        max_value=LARGEST["weight"],
        required=False,
        help_text="The tenant's share among those of its class that wait; with 2 it gets twice the tokens.",
    )
    created_at = serializers.DateTimeField(read_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantWithPolicy:
    """A tenant and its current policy."""

    tenant: Tenant
    policy: TenantPolicy

    @property
    def id(self) -> UUID:
        """The tenant's id, which pagination orders by."""
        return self.tenant.id


def _regions_field() -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_REGION),
        max_length=MOST_REGIONS,
        required=False,
        help_text="Regions of pools in which the tenant's requests may run; empty: all.",
    )


class ChangeTenantSerializer(PolicySerializer):
    """Changes of a tenant's policy, and of its regions."""

    allowed_regions = _regions_field()
    cost_centre = cost_centre_field(COST_CENTRE)


class TenantSerializer(serializers.Serializer[TenantWithPolicy]):
    """A tenant with its policy."""

    id = serializers.UUIDField(source="tenant.id", read_only=True)
    slug = serializers.CharField(source="tenant.slug", read_only=True)
    name = serializers.CharField(source="tenant.name", read_only=True)
    state = serializers.ChoiceField(source="tenant.state", choices=Tenant.State.choices, read_only=True)
    currency = serializers.CharField(source="tenant.currency", read_only=True)
    billing_timezone = serializers.CharField(source="tenant.billing_timezone", read_only=True)
    allowed_regions = serializers.ListField(
        source="tenant.allowed_regions",
        child=serializers.CharField(),
        read_only=True,
        help_text="Regions of pools in which the tenant's requests may run; empty: all.",
    )
    cost_centre = serializers.CharField(source="tenant.cost_centre", read_only=True, help_text=COST_CENTRE)
    created_at = serializers.DateTimeField(source="tenant.created_at", read_only=True)
    policy = PolicySerializer(read_only=True)


class NewTenantSerializer(serializers.Serializer[Tenant]):
    """A new tenant; absent fields of the policy take their defaults."""

    slug = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=200)
    allowed_regions = _regions_field()
    cost_centre = cost_centre_field(COST_CENTRE)
    policy = PolicySerializer(required=False)


class TenantsView(ApiView):
    """The tenants that the caller sees."""

    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="list_tenants",
        parameters=[
            OpenApiParameter("archived", str, enum=["1"], description="1: archived ones too. Default: live tenants."),
            *PAGE_PARAMETERS,
        ],
        responses={200: page_schema(TenantSerializer, "TenantList"), **error_responses(400)},
    )
    def get(self, request: Request) -> Response:
        """List tenants, newest first."""
        page = pagination.page_request(request)
        principal = principal_of(request)
        found = tenants_of(principal)
        if not _with_archived(request):
            found = found.exclude(state=Tenant.State.ARCHIVED)

        def read_page() -> list[TenantWithPolicy]:
            return with_policies(pagination.read_page(found, page))

        rows = tenant_reads.newest(principal, read_page, page.limit + 1)
        return Response(pagination.page_document(rows, TenantSerializer, page.limit))

    @extend_schema(
        operation_id="create_tenant",
        request=NewTenantSerializer,
        responses={201: TenantSerializer, **error_responses(400, 403, 409)},
    )
    def post(self, request: Request) -> Response:
        """Create a tenant with a project named `default`. Operators only."""
        body = NewTenantSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        regions = body.validated_data.get("allowed_regions", [])
        pools.require_regions(regions)
        actor = principal_of(request).actor
        with transaction.atomic():
            tenant = registry.create_tenant(
                actor,
                slug=body.validated_data["slug"],
                name=body.validated_data["name"],
                policy=registry.Policy(**body.validated_data.get("policy", {})),
                allowed_regions=regions,
            )
            tenant = cost_centres.set_of_tenant(actor, tenant, body.validated_data.get("cost_centre", ""))
        return Response(read(tenant), status=status.HTTP_201_CREATED)


class TenantView(ApiView):
    """One tenant, by slug or id."""

    permission_classes = (OperatorChanges,)

    @extend_schema(operation_id="get_tenant", responses={200: TenantSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return the tenant and its current policy."""
        found = tenant_for(principal_of(request), tenant)
        with as_tenant(TenantId(found.id)):
            return Response(read(found))

    @extend_schema(
        operation_id="change_policy",
        request=ChangeTenantSerializer,
        responses={200: TenantSerializer, **error_responses(400, 403, 404)},
    )
    def patch(self, request: Request, tenant: str) -> Response:
        """Change fields of the policy, or the regions; every gateway applies them within a second. Operators only.

        Or the cost centre: reports use it for usage of any time; journal and FOCUS export of closed months keep theirs.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = ChangeTenantSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        changes = dict(body.validated_data)
        with transaction.atomic():
            if (regions := changes.pop("allowed_regions", None)) is not None:
                pools.require_regions(regions)
                found = registry.set_regions(principal.actor, found, regions)
            if (cost_centre := changes.pop("cost_centre", None)) is not None:
                found = cost_centres.set_of_tenant(principal.actor, found, cost_centre)
            registry.set_policy(principal.actor, found, **changes)
        return Response(read(found))


class SuspendView(ApiView):
    """Suspend a tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="suspend_tenant", request=None, responses={200: TenantSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Suspend the tenant: every gateway refuses its requests within a second. Nothing is deleted."""
        principal = principal_of(request)
        return Response(read(registry.suspend(principal.actor, tenant_for(principal, tenant))))


class ResumeView(ApiView):
    """Resume a suspended tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="resume_tenant", request=None, responses={200: TenantSerializer, **error_responses(403, 404, 409)}
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Resume the tenant."""
        principal = principal_of(request)
        return Response(read(registry.resume(principal.actor, tenant_for(principal, tenant))))


class ArchiveView(ApiView):
    """Archive a tenant."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="archive_tenant", request=None, responses={200: TenantSerializer, **error_responses(403, 404)}
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Archive the tenant for good: its keys are refused within a second; its usage and ledger stay."""
        principal = principal_of(request)
        return Response(read(registry.archive(principal.actor, tenant_for(principal, tenant))))


def _with_archived(request: Request) -> bool:
    """Return whether archived tenants are asked for. Raises BadQuery for any value but 1."""
    asked = query_params.text(request.query_params, "archived")
    if asked not in {None, "1"}:
        raise BadQuery("archived", str(asked), "1, or leave it out for live tenants only")
    return asked is not None


def read(tenant: Tenant) -> Any:
    """Return one tenant as JSON."""
    return TenantSerializer(with_policies([tenant])[0]).data


def with_policies(tenants: Sequence[Tenant]) -> list[TenantWithPolicy]:
    """Return the tenants with their policies, read in one query."""
    policies: dict[UUID, TenantPolicy] = {
        policy.tenant_id: policy
        for policy in TenantPolicy.objects.filter(tenant__in=tenants)
        .order_by("tenant_id", "-version")
        .distinct("tenant_id")
    }
    return [TenantWithPolicy(tenant=tenant, policy=policies[tenant.id]) for tenant in tenants]

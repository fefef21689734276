"""``/api/v1/tenants/{tenant}/cache``: the prediction cache of a tenant, its projects and its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from caching.store import CacheUsage
from catalogue import administration
from portal.access.principal import tenant_for
from portal.access.rights import limit_permissions
from portal.access.rights.limit_permissions import TargetNames
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import IdField, SwitchField
from portal.reporting import cache_usage
from tenants import registry
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import CachePurge, CacheSetting, TenantPolicy
from tenants.policy import cache_settings
from tenants.policy.cache_settings import LARGEST, CacheOverrides


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus:
    """A tenant's cache policy, and what is stored."""

    policy: TenantPolicy
    stored: CacheUsage | None


class StoredSerializer(serializers.Serializer[CacheUsage]):
    """What Redis stores for the tenant."""

    entries = serializers.IntegerField(read_only=True)
    bytes = serializers.IntegerField(read_only=True, help_text="Including the overhead of each entry.")


class CacheSerializer(serializers.Serializer[CacheStatus]):
    """The tenant's policy, which applies unless a project or key has its own setting."""

    mode = serializers.ChoiceField(source="policy.cache_mode", choices=TenantPolicy.CacheMode.choices, read_only=True)
    ttl_seconds = serializers.IntegerField(source="policy.cache_ttl_seconds", read_only=True)
    entry_bytes = serializers.IntegerField(source="policy.cache_entry_bytes", read_only=True)
    quota_bytes = serializers.IntegerField(source="policy.cache_quota_bytes", read_only=True)
    writes_per_minute = serializers.IntegerField(
        source="policy.cache_writes_per_minute",
        read_only=True,
        allow_null=True,
        help_text="Per key; null is unlimited.",
    )
    scope = serializers.ChoiceField(source="policy.cache_scope", choices=TenantPolicy.Scope.choices, read_only=True)
    stored = StoredSerializer(
        read_only=True,
        allow_null=True,
        help_text="null while Redis is unavailable, and for a key of one project: it counts what all projects stored.",
    )


class SettingSerializer(serializers.Serializer[CacheSetting]):
    """The setting of a project or key. A key's overrides its project's, which overrides the tenant's policy."""

    id = serializers.UUIDField(read_only=True)
    project = serializers.CharField(
        source="project.slug", max_length=63, default=None, allow_null=True, help_text="Slug; null for none."
    )
    key = IdField(source="key_id", default=None, allow_null=True, help_text="Id; null for none.")
    mode = serializers.ChoiceField(
        choices=TenantPolicy.CacheMode.choices, default="", allow_blank=True, help_text="Empty: inherited."
    )
    ttl_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["ttl_seconds"],
        default=None,
        allow_null=True,
        help_text="0: nothing is stored; null: inherited.",
    )
    writes_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["writes_per_minute"],
        default=None,
        allow_null=True,
        help_text="Answers that one key may store per minute; null: inherited.",
    )
    created_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a setting without a target or without a value."""
        if attrs["project"] in (None, {"slug": None}) and attrs["key_id"] is None:
            raise serializers.ValidationError(
                {"project": "Name a project or a key; the tenant's own setting is its policy."}
            )
        if not attrs["mode"] and attrs["ttl_seconds"] is None and attrs["writes_per_minute"] is None:
            raise serializers.ValidationError({"mode": "Set at least one of mode, ttl_seconds and writes_per_minute."})
        return attrs


class PurgeSerializer(serializers.Serializer[CachePurge]):
    """The answers to purge: exactly one of `everything`, `model`, `key` and `request`."""

    id = serializers.UUIDField(read_only=True)
    everything = SwitchField(default=False, write_only=True)
    model = serializers.CharField(source="model_name", max_length=200, default="", allow_blank=True)
    key = IdField(
        source="key_id", default=None, allow_null=True, help_text="Answers stored by this key and the keys it replaced."
    )
    request = IdField(source="request_id", default=None, allow_null=True, help_text="The `x-source-id` of the answer.")
    created_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse none or several, because an empty body must not purge everything."""
        named = [attrs["everything"], attrs["model_name"], attrs["key_id"], attrs["request_id"]]
        if sum(bool(each) for each in named) != 1:
            raise serializers.ValidationError({"everything": "Name one of everything: true, model, key and request."})
        return attrs


class CacheView(ApiView):
    """A tenant's prediction cache."""

    @extend_schema(operation_id="get_cache", responses={200: CacheSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return the tenant's cache policy and how much is stored now."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        with as_tenant(TenantId(found.id)):
            policy = registry.policy_of(found)
        stored = cache_usage.stored(found) if principal.sees_whole(found.id) else None
        return Response(CacheSerializer(CacheStatus(policy=policy, stored=stored)).data)


class SettingsView(ApiView):
    """The cache settings of projects and keys."""

    @extend_schema(
        operation_id="list_cache_settings",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(SettingSerializer, "CacheSettingList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the settings of projects and keys, newest first.

        A key that is not tenant-wide sees those of its project and the project's keys.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(limit_permissions.cache_settings_of(principal, found), page)
        return Response(pagination.page_document(rows, SettingSerializer, page.limit))

    @extend_schema(
        operation_id="set_cache",
        request=SettingSerializer,
        responses={200: SettingSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Set the cache of a project or key, replacing its current setting. It applies within a second.

        For operators, owners and keys with the scope `management:write`. Set the tenant's own values in its policy.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        body = SettingSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given = body.validated_data
        named = TargetNames(project=(given["project"] or {}).get("slug"), key=given["key_id"])
        terms = CacheOverrides(
            mode=given["mode"], ttl_seconds=given["ttl_seconds"], writes_per_minute=given["writes_per_minute"]
        )
        setting = cache_settings.set_setting(
            principal.actor, limit_permissions.target_for(principal, found, named), terms
        )
        return Response(SettingSerializer(setting).data)


class SettingView(ApiView):
    """One setting."""

    @extend_schema(operation_id="remove_cache_setting", responses={204: None, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, setting: UUID) -> Response:
        """Remove the setting: the level above applies within a second."""
        principal = principal_of(request)
        owner = tenant_for(principal, tenant)
        listed = limit_permissions.cache_settings_of(principal, owner)
        found = limit_permissions.rule_of(owner, listed, "cache setting", setting)
        limit_permissions.require_may_change(principal, found)
        cache_settings.remove(principal.actor, found)
        return Response(status=status.HTTP_204_NO_CONTENT)


class PurgeView(ApiView):
    """Purges of stored answers."""

    @extend_schema(
        operation_id="purge_cache",
        request=PurgeSerializer,
        responses={201: PurgeSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Purge stored answers and those of running requests. No gateway serves them after a second.

        For operators, owners and keys with the scope `management:write`. A key that is not tenant-wide purges a key of
        its project, or a request of it once its usage is stored.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        limit_permissions.require_may_set(principal, found)
        body = PurgeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given = body.validated_data
        named = TargetNames(key=given["key_id"], model=given["model_name"])
        target = limit_permissions.purge_target(principal, found, named, given["request_id"])
        made = administration.purge(principal.actor, found, target)
        cache_usage.delete(found, target)
        return Response(PurgeSerializer(made).data, status=status.HTTP_201_CREATED)

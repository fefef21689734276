"""``/api/v1/tenants/{tenant}/cache``: what the prediction cache keeps for a tenant, its projects and its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from caching.store import CacheUsage
from portal.access import limit_permissions
from portal.access.limit_permissions import TargetNames
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.serializer_fields import IdField, SwitchField
from portal.reporting import cache_usage
from tenants import cache_settings, purges, registry
from tenants.cache_settings import LARGEST, CacheOverrides
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import CachePurge, CacheSetting, TenantPolicy
from tenants.rls import as_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus:
    """A tenant's policy, and what is stored."""

    policy: TenantPolicy
    held: CacheUsage | None


class StoredSerializer(serializers.Serializer[CacheUsage]):
    """What Redis keeps of the tenant."""

    entries = serializers.IntegerField(read_only=True)
    bytes = serializers.IntegerField(read_only=True, help_text="With what each entry takes beside itself.")


class CacheSerializer(serializers.Serializer[CacheStatus]):
    """The tenant's own policy, which is in force where no setting of a project or key says otherwise."""

    mode = serializers.ChoiceField(source="policy.cache_mode", choices=TenantPolicy.CacheMode.choices, read_only=True)
    ttl_seconds = serializers.IntegerField(source="policy.cache_ttl_seconds", read_only=True)
    entry_bytes = serializers.IntegerField(source="policy.cache_entry_bytes", read_only=True)
    quota_bytes = serializers.IntegerField(source="policy.cache_quota_bytes", read_only=True)
    writes_per_minute = serializers.IntegerField(
        source="policy.cache_writes_per_minute",
        read_only=True,
        allow_null=True,
        help_text="Of one key; null is unlimited.",
    )
    scope = serializers.ChoiceField(source="policy.cache_scope", choices=TenantPolicy.Scope.choices, read_only=True)
    stored = StoredSerializer(source="held", read_only=True, allow_null=True, help_text="null while Redis is away.")


class SettingSerializer(serializers.Serializer[CacheSetting]):
    """What is otherwise for one project or one key: the key's before the project's before the tenant's policy."""

    id = serializers.UUIDField(read_only=True)
    project = serializers.CharField(
        source="project.slug", max_length=63, default=None, allow_null=True, help_text="Slug; null for none."
    )
    key = IdField(source="key_id", default=None, allow_null=True, help_text="Id; null for none.")
    mode = serializers.ChoiceField(
        choices=TenantPolicy.CacheMode.choices, default="", allow_blank=True, help_text="Empty: as it is one level up."
    )
    ttl_seconds = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["ttl_seconds"],
        default=None,
        allow_null=True,
        help_text="0: nothing is stored; null: as it is one level up.",
    )
    writes_per_minute = serializers.IntegerField(
        min_value=0,
        max_value=LARGEST["writes_per_minute"],
        default=None,
        allow_null=True,
        help_text="Answers that one key may store in a minute; null: as it is one level up.",
    )
    created_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse what is for nobody, and what says nothing."""
        if attrs["project"] in (None, {"slug": None}) and attrs["key_id"] is None:
            raise serializers.ValidationError({"project": "Name a project or a key; the tenant's own is its policy."})
        if not attrs["mode"] and attrs["ttl_seconds"] is None and attrs["writes_per_minute"] is None:
            raise serializers.ValidationError({"mode": "Set at least one of mode, ttl_seconds and writes_per_minute."})
        return attrs


class PurgeSerializer(serializers.Serializer[CachePurge]):
    """Answers that may be given no more: exactly one of `everything`, `model`, `key` and `request`."""

    id = serializers.UUIDField(read_only=True)
    everything = SwitchField(default=False, write_only=True)
    model = serializers.CharField(source="model_name", max_length=200, default="", allow_blank=True)
    key = IdField(
        source="key_id", default=None, allow_null=True, help_text="What this key stored, and those it came from."
    )
    request = IdField(source="request_id", default=None, allow_null=True, help_text="`x-source-id` of the answer.")
    created_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse none and several: an empty body must not purge everything."""
        named = [attrs["everything"], attrs["model_name"], attrs["key_id"], attrs["request_id"]]
        if sum(bool(each) for each in named) != 1:
            raise serializers.ValidationError({"everything": "Name one of everything: true, model, key and request."})
        return attrs


class CacheView(APIView):
    """A tenant's prediction cache."""

    @extend_schema(operation_id="get_cache", responses={200: CacheSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str) -> Response:
        """Return what the tenant's policy says of the prediction cache, and how much it keeps now."""
        found = tenant_for(principal_of(request), tenant)
        with as_tenant(TenantId(found.id)):
            policy = registry.policy_of(found)
        return Response(CacheSerializer(CacheStatus(policy=policy, held=cache_usage.stored(found))).data)


class SettingsView(APIView):
    """What is otherwise for projects and keys."""

    @extend_schema(
        operation_id="list_cache_settings",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(SettingSerializer, "CacheSettingList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the settings of projects and keys, newest first."""
        found = tenant_for(principal_of(request), tenant)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(limit_permissions.cache_settings_of(found), page)
        return Response(pagination.page_document(rows, SettingSerializer, page.limit))

    @extend_schema(
        operation_id="set_cache",
        request=SettingSerializer,
        responses={200: SettingSerializer, **error_responses(400, 403, 404, 409)},
    )
    def put(self, request: Request, tenant: str) -> Response:
        """Set the cache of a project or key, in place of what it has; in force within a second.

        Operators, owners and keys with the scope `management:write`. A tenant's own is its policy.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        asked = SettingSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        given = asked.validated_data
        named = TargetNames(project=(given["project"] or {}).get("slug"), key=given["key_id"])
        terms = CacheOverrides(
            mode=given["mode"], ttl_seconds=given["ttl_seconds"], writes_per_minute=given["writes_per_minute"]
        )
        setting = cache_settings.set_setting(
            principal.actor, limit_permissions.target_for(principal, found, named), terms
        )
        return Response(SettingSerializer(setting).data)


class SettingView(APIView):
    """One setting."""

    @extend_schema(operation_id="remove_cache_setting", responses={204: None, **error_responses(403, 404)})
    def delete(self, request: Request, tenant: str, setting: UUID) -> Response:
        """Leave all as it is one level up, within a second."""
        principal = principal_of(request)
        found = limit_permissions.cache_settings_of(tenant_for(principal, tenant)).filter(id=setting).first()
        if found is None:
            raise NotFound("cache setting", str(setting))
        limit_permissions.require_may_change(principal, found)
        cache_settings.remove(principal.actor, found)
        return Response(status=status.HTTP_204_NO_CONTENT)


class PurgeView(APIView):
    """Stored answers that may be given no more."""

    @extend_schema(
        operation_id="purge_cache",
        request=PurgeSerializer,
        responses={201: PurgeSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Purge what was asked for until now, stored or still running; no gateway gives it after a second.

        Operators, owners and keys with the scope `management:write`.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        limit_permissions.require_may_set(principal, found)
        asked = PurgeSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        reject_unknown_fields(asked)
        given = asked.validated_data
        named = TargetNames(key=given["key_id"], model=given["model_name"])
        target = limit_permissions.purge_target(found, named, given["request_id"])
        made = purges.purge(principal.actor, found, target)
        cache_usage.delete(found, target)
        return Response(PurgeSerializer(made).data, status=status.HTTP_201_CREATED)

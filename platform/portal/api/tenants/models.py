"""``/api/v1/tenants/{tenant}/models``: what a tenant may call, what it can do and costs, and whether it answers."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.pricing import price_document
from portal.access.principal import tenant_for
from portal.api import pagination
from portal.api.authentication import MayRead, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema
from portal.reporting import tenant_catalogue
from portal.reporting.tenant_catalogue import CatalogueModel
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId

#: Of prices that the tenant's priority has changed already.
STANDARD = "standard"


class CapabilitiesSerializer(serializers.Serializer[Any]):
    """What a model does; null: not known."""

    chat = serializers.BooleanField(read_only=True, allow_null=True)
    completions = serializers.BooleanField(read_only=True, allow_null=True)
    embeddings = serializers.BooleanField(read_only=True, allow_null=True)
    tools = serializers.BooleanField(read_only=True, allow_null=True, help_text="It chooses among tools.")
    structured_outputs = serializers.BooleanField(read_only=True, allow_null=True)
    vision = serializers.BooleanField(read_only=True, allow_null=True)
    reasoning = serializers.BooleanField(
        read_only=True, allow_null=True, help_text="Its reasoning stands apart from its answer."
    )
    lora = serializers.BooleanField(read_only=True, allow_null=True, help_text="Its replicas load LoRA adapters.")


class PriceDocumentSerializer(serializers.Serializer[Any]):
    """A price in units of its currency, as decimal text by class."""

    currency = serializers.CharField(read_only=True)
    per_million_tokens = serializers.DictField(child=serializers.CharField(), read_only=True)
    per_request = serializers.DictField(child=serializers.CharField(), read_only=True)


class CatalogueModelSerializer(serializers.Serializer[CatalogueModel]):
    """A model as this tenant sees it, with the fields that `/v1/models` has in `hearth`."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    owner = serializers.CharField(read_only=True)
    base = serializers.CharField(read_only=True, help_text="Of a LoRA adapter: the model that it changes.")
    aliases = serializers.ListField(child=serializers.CharField(), read_only=True)
    task = serializers.ChoiceField(choices=("text", "embeddings"), read_only=True)
    context_tokens = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Prompt and completion together; null: no engine has said it."
    )
    capabilities = CapabilitiesSerializer(read_only=True)
    price = serializers.SerializerMethodField(help_text="What this tenant pays; null: there is no price yet.")
    state = serializers.ChoiceField(
        source="state.state", choices=("ready", "starting", "asleep", "stopped"), read_only=True
    )
    eta_seconds = serializers.FloatField(
        source="state.eta_seconds", read_only=True, allow_null=True, help_text="Until it answers; null: not known."
    )
    deprecated_at = serializers.DateTimeField(read_only=True, allow_null=True)
    retires_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="From when on its requests are refused."
    )
    replacement = serializers.CharField(read_only=True, help_text="What to call instead of one that retires.")

    @extend_schema_field(PriceDocumentSerializer(allow_null=True))
    def get_price(self, model: CatalogueModel) -> dict[str, Any] | None:
        """Return the price, None if there is none."""
        return None if model.price is None else price_document.document(model.price, STANDARD)


class TenantModelsView(ApiView):
    """The models that a tenant may call."""

    permission_classes = (MayRead,)

    @extend_schema(
        operation_id="list_tenant_models",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(CatalogueModelSerializer, "TenantModelList"), **error_responses(400, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List the models that a tenant may call with context, abilities, price and state, newest first."""
        page, principal = pagination.page_request(request), principal_of(request)
        found = tenant_for(principal, tenant)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(tenant_catalogue.visible(found, principal), page)
        described = tenant_catalogue.read(found, tenant_catalogue.names(rows))
        return Response(pagination.page_document(described, CatalogueModelSerializer, page.limit))


class TenantModelView(ApiView):
    """One model that a tenant may call."""

    permission_classes = (MayRead,)

    @extend_schema(operation_id="get_tenant_model", responses={200: CatalogueModelSerializer, **error_responses(404)})
    def get(self, request: Request, tenant: str, name: str) -> Response:
        """Return a model that a tenant may call, by its name or an alias."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        model = tenant_catalogue.find(found, principal, name)
        if model is None:
            raise NotFound("model", name)
        return Response(CatalogueModelSerializer(model).data)

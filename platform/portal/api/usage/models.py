"""``/api/v1/models``: the models of the catalogue with their revisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from catalogue.models import Model, ModelAlias, ModelRevision
from portal.access.principal import Principal
from portal.api import pagination
from portal.api.authentication import principal_of
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema
from tenants.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model with its aliases and all its revisions, the active one first."""

    model: Model
    owner: str
    aliases: Sequence[str]
    revisions: Sequence[ModelRevision]

    @property
    def id(self) -> UUID:
        """The model's id, which pagination orders by."""
        return self.model.id


class RevisionSerializer(serializers.Serializer[ModelRevision]):
    """An exact version of a model. Never changed, only superseded."""

    id = serializers.UUIDField(read_only=True)
    digest = serializers.CharField(read_only=True, help_text="SHA-256 of everything that can change an answer.")
    engine = serializers.CharField(read_only=True)
    engine_args = serializers.ListField(child=serializers.CharField(), read_only=True)
    context_length_tokens = serializers.IntegerField(read_only=True)
    active_from = serializers.DateTimeField(read_only=True)
    superseded_at = serializers.DateTimeField(read_only=True, allow_null=True)


class ModelSerializer(serializers.Serializer[CatalogueEntry]):
    """A served model name."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(source="model.name", read_only=True)
    owner = serializers.CharField(read_only=True, help_text="Slug of the tenant that owns it.")
    visibility = serializers.ChoiceField(source="model.visibility", choices=Model.Visibility.choices, read_only=True)
    aliases = serializers.ListField(child=serializers.CharField(), read_only=True)
    archived_at = serializers.DateTimeField(source="model.archived_at", read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(source="model.created_at", read_only=True)
    revisions = RevisionSerializer(many=True, read_only=True)


class ModelsView(APIView):
    """The models that the caller sees."""

    @extend_schema(
        operation_id="list_models",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ModelSerializer, "CatalogueList"), **error_responses(400)},
    )
    def get(self, request: Request) -> Response:
        """List models with their revisions, newest first."""
        page = pagination.page_request(request)
        rows = with_revisions(pagination.read_page(visible(principal_of(request)), page))
        return Response(pagination.page_document(rows, ModelSerializer, page.limit))


class ModelView(APIView):
    """One model."""

    @extend_schema(operation_id="get_model", responses={200: ModelSerializer, **error_responses(404)})
    def get(self, request: Request, name: str) -> Response:
        """Return the model with its revisions."""
        # PostgreSQL refuses to compare with NUL, which no name contains
        found = visible(principal_of(request)).filter(name=name).first() if "\0" not in name else None
        if found is None:
            raise NotFound("model", name)
        return Response(ModelSerializer(with_revisions([found])[0]).data)


def visible(principal: Principal) -> QuerySet[Model]:
    """Return the models that this principal sees: public models and those of its own tenants."""
    every = Model.objects.select_related("owner")
    if principal.tenants is None:
        return every
    return every.filter(Q(visibility=Model.Visibility.PUBLIC) | Q(owner_id__in=principal.tenants))


def with_revisions(models: Sequence[Model]) -> list[CatalogueEntry]:
    """Return these models with their revisions and aliases, read in two queries."""
    revisions: dict[UUID, list[ModelRevision]] = {model.id: [] for model in models}
    for revision in ModelRevision.objects.filter(model__in=models).order_by("-superseded_at", "-active_from"):
        revisions[revision.model_id].append(revision)
    aliases: dict[UUID, list[str]] = {model.id: [] for model in models}
    for alias in ModelAlias.objects.filter(model__in=models).order_by("name"):
        aliases[alias.model_id].append(alias.name)
    return [
        CatalogueEntry(model=model, owner=model.owner.slug, aliases=aliases[model.id], revisions=revisions[model.id])
        for model in models
    ]

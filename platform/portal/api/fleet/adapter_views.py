"""``/api/v1/fleet/adapters``: LoRA adapters, where they are loaded, and a new one or another revision of one."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from catalogue.models import Model
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import error_responses, reject_unknown_fields
from workers.fleet.status import adapters
from workers.fleet.status.adapters import AdapterOnReplica, AdapterStatus
from workers.model_sources import adapters as sources
from workers.model_sources.adapters import AdapterSpec


class AdapterOnReplicaSerializer(serializers.Serializer[AdapterOnReplica]):
    """An adapter on one ready replica of its base."""

    replica = serializers.CharField(read_only=True)
    node = serializers.CharField(read_only=True)
    loaded = serializers.BooleanField(source="is_loaded", read_only=True)
    error = serializers.CharField(read_only=True, help_text="Why the last attempt to load it failed; empty: none did.")


class AdapterSerializer(serializers.Serializer[AdapterStatus]):
    """A LoRA adapter."""

    name = serializers.CharField(read_only=True)
    owner = serializers.CharField(read_only=True, help_text="Slug of the tenant that it belongs to.")
    base = serializers.CharField(read_only=True, help_text="The model that it changes.")
    source = serializers.CharField(read_only=True)  # type: ignore[assignment]  # the field's own ``source``
    revision = serializers.CharField(read_only=True, help_text="The commit of a Hugging Face id; empty for a folder.")
    digest = serializers.CharField(read_only=True, help_text="Of what replicas load.")
    ready = serializers.IntegerField(read_only=True, help_text="Ready replicas of its base that take adapters.")
    loaded = serializers.IntegerField(read_only=True, help_text="Those of them that have it.")
    is_coming = serializers.BooleanField(
        read_only=True, help_text="Whether an earlier revision serves until every replica has this one."
    )
    replicas = AdapterOnReplicaSerializer(many=True, read_only=True)
    note = serializers.CharField(source="words", read_only=True, help_text="All of it in a sentence, with the reasons.")


class AdapterListSerializer(serializers.Serializer[Any]):
    """All adapters by name."""

    adapters = AdapterSerializer(many=True, read_only=True)


class NewAdapterSerializer(serializers.Serializer[Any]):
    """An adapter to load."""

    name = serializers.CharField(
        max_length=200, help_text="`base:adapter`, after the model that it changes or an alias of it."
    )
    source = serializers.CharField(  # type: ignore[assignment]  # the field's own ``source``
        max_length=500, help_text="A folder on the portal's machine and on every node, or a Hugging Face id."
    )
    revision = serializers.CharField(
        max_length=200,
        required=False,
        default="",
        allow_blank=True,
        help_text="Branch, tag or commit of a Hugging Face id; the commit that it is now is served. Default: main.",
    )
    tenant = serializers.CharField(
        max_length=63, required=False, help_text="Slug of its owner. Default: as before, the platform for a new one."
    )
    secret = serializers.CharField(
        max_length=63,
        required=False,
        help_text="Name of the secret that its files are fetched with (`/secrets`). Default: as before, none.",
    )


class LoadedAdapterSerializer(AdapterSerializer):
    """An adapter that replicas load now."""

    notes = serializers.ListField(child=serializers.CharField(), read_only=True, help_text="What to know about it.")


class AdaptersView(ApiView):
    """The LoRA adapters."""

    permission_classes = (OperatorOnly,)

    @extend_schema(operation_id="list_adapters", responses={200: AdapterListSerializer, **error_responses(403)})
    def get(self, request: Request) -> Response:
        """List the adapters that are not archived: what replicas load, where it is, and why not. Operators only."""
        rows = Model.objects.filter(archived_at=None).exclude(base=None).order_by("name")
        found = adapters.by_model(rows)
        return Response(AdapterListSerializer({"adapters": [found[row.id] for row in rows]}).data)

    @extend_schema(
        operation_id="load_adapter",
        request=NewAdapterSerializer,
        responses={200: LoadedAdapterSerializer, 201: LoadedAdapterSerializer, **error_responses(400, 403, 404)},
    )
    def post(self, request: Request) -> Response:
        """Load an adapter into the replicas of its base, or another revision of a known one. Operators only.

        Its name, its base, its files and its owner are checked first. 201 for a new one. The same body twice changes
        nothing. Everything else of it is changed as of any model (`PATCH /models/{name}`), and `POST /prices` sets its
        price.
        """
        body = NewAdapterSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        given = body.validated_data
        name = given["name"]
        known = Model.objects.filter(name=name).exists()
        spec = AdapterSpec(
            name=name,
            source=given["source"],
            commit=given["revision"],
            owner=given.get("tenant"),
            secret=given.get("secret"),
        )
        notes: list[str] = []
        revision = sources.deploy_spec(principal_of(request).actor, spec, notes.append)
        status = adapters.status(revision.model)
        document = {**AdapterSerializer(status).data, "notes": notes}
        return Response(document, status=200 if known else 201)

"""``/api/v1/models``: the models of the catalogue with their revisions, and what operators change of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from msgspec.structs import asdict
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.pricing import prices
from catalogue import engine_options
from catalogue.administration import MOST_ALIASES
from catalogue.engine_options import EngineOptions
from catalogue.models import Model, ModelAlias, ModelRevision
from portal.access import tenant_reads
from portal.access.principal import Principal
from portal.access.rights import operator_rights
from portal.api import pagination
from portal.api.authentication import OperatorChanges, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.api.usage import model_deployment
from portal.api.usage.model_deployment import DeployedSerializer, NewModelSerializer
from portal.fleet import deploy_preview, deploying, model_changes
from portal.fleet.model_changes import ModelChange, Retirement
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.models import Tenant
from workers.fleet import rollouts
from workers.fleet.deployments import MAX_SLOTS_PER_REPLICA
from workers.fleet.model_options import OptionChange
from workers.models import Deployment, ModelSecret
from workers.weights.secrets import LONGEST_VALUE

#: What the column stores.
LARGEST_CONTEXT = 2**31 - 1
MOST_ARGUMENTS = 1000
LONGEST_ARGUMENT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """A model with its aliases and all its revisions, the active one first."""

    model: Model
    owner: str
    #: Slugs of the tenants that see it beside its owner while it is private; only operators see them.
    tenants: Sequence[str]
    aliases: Sequence[str]
    revisions: Sequence[ModelRevision]
    #: For tenants: the platform's book or their own has a price for it.
    priced: bool
    #: Only operators see them; None for a model without a deployment.
    slots_per_replica: int | None
    #: The name of the secret that its files are fetched with; empty for none, and except for operators.
    secret: str
    #: Of a LoRA adapter: the model that it changes; empty for any other model.
    base: str
    #: What to call instead of one that retires; empty for none that the principal sees.
    replacement: str

    @property
    def id(self) -> UUID:
        """The model's id, which pagination orders by."""
        return self.model.id


class EngineOptionsSerializer(serializers.Serializer[EngineOptions]):
    """The typed options of an engine."""

    kv_dtype = serializers.CharField(read_only=True, help_text="Type of the KV cache's values; auto: the model's.")
    quantization = serializers.CharField(
        read_only=True, help_text="By what the weights are quantised; auto: as their files say."
    )
    host_memory_gib = serializers.IntegerField(
        read_only=True, help_text="The host's memory for KV blocks that leave the GPUs of a replica, all together."
    )
    pipeline_parallel = serializers.IntegerField(
        read_only=True, help_text="Stages that the layers are divided into; each has slots_per_replica / stages GPUs."
    )
    lora_adapters = serializers.IntegerField(read_only=True, help_text="LoRA adapters that one batch may use.")
    lora_rank = serializers.IntegerField(read_only=True, help_text="The largest rank of such an adapter.")


class RevisionSerializer(serializers.Serializer[ModelRevision]):
    """An exact version of a model. Never changed, only superseded."""

    id = serializers.UUIDField(read_only=True)
    digest = serializers.CharField(read_only=True, help_text="SHA-256 of everything that can change an answer.")
    engine = serializers.CharField(read_only=True)
    engine_version = serializers.CharField(
        read_only=True, help_text="Empty: the first one that each node has. Always empty except for operators."
    )
    engine_args = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Empty except for operators."
    )
    context_length_tokens = serializers.IntegerField(
        read_only=True, help_text="Longest prompt and completion together, as deployed. 0: the model's own."
    )
    options = serializers.SerializerMethodField(help_text="Null except for operators.")
    active_from = serializers.DateTimeField(read_only=True)
    superseded_at = serializers.DateTimeField(read_only=True, allow_null=True)

    @extend_schema_field(EngineOptionsSerializer(allow_null=True))
    def get_options(self, revision: ModelRevision) -> dict[str, Any] | None:
        """Return all typed options; None for whom they are hidden from."""
        return None if revision.options is None else asdict(engine_options.from_json(revision.options))


class ModelSerializer(serializers.Serializer[CatalogueEntry]):
    """A served model name."""

    id = serializers.UUIDField(read_only=True)
    name = serializers.CharField(source="model.name", read_only=True)
    owner = serializers.CharField(read_only=True, help_text="Slug of the tenant that owns it.")
    base = serializers.CharField(
        read_only=True, help_text="Of a LoRA adapter: the model whose replicas serve it. Empty for any other model."
    )
    visibility = serializers.ChoiceField(source="model.visibility", choices=Model.Visibility.choices, read_only=True)
    tenants = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="Slugs of the tenants that see it beside its owner while it is private. Empty except for operators.",
    )
    aliases = serializers.ListField(child=serializers.CharField(), read_only=True)
    slots_per_replica = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text="Slots of one node that each replica takes. Null for a model that is not deployed, and except for "
        "operators.",
    )
    secret = serializers.CharField(
        read_only=True, help_text="Name of the secret that its files are fetched with. Empty except for operators."
    )
    deprecated_at = serializers.DateTimeField(
        source="model.deprecated_at", read_only=True, allow_null=True, help_text="When its retirement was announced."
    )
    retires_at = serializers.DateTimeField(
        source="model.retires_at", read_only=True, allow_null=True, help_text="From when on its requests are refused."
    )
    replacement = serializers.CharField(
        read_only=True, help_text="What to call instead of one that retires; empty for none that the caller may call."
    )
    archived_at = serializers.DateTimeField(source="model.archived_at", read_only=True, allow_null=True)
    created_at = serializers.DateTimeField(source="model.created_at", read_only=True)
    priced = serializers.BooleanField(
        read_only=True, help_text="Whether a price is in force. Usage is unrated until there is one."
    )
    revisions = RevisionSerializer(many=True, read_only=True)


class ModelChangeSerializer(serializers.Serializer[ModelChange]):
    """New values of a model; absent fields stay as they are."""

    name = serializers.CharField(
        max_length=200,
        required=False,
        help_text="Renames it. The old name becomes an alias, and a rollout replaces its replicas.",
    )
    archived = serializers.BooleanField(
        required=False, help_text="true: it cannot be called any more and its replicas stop; false undoes that."
    )
    visibility = serializers.ChoiceField(choices=Model.Visibility.choices, required=False)
    tenants = serializers.ListField(
        child=serializers.CharField(max_length=63),
        required=False,
        max_length=1000,
        help_text="Slugs of all tenants that see it beside its owner. Makes it private unless it is empty.",
    )
    aliases = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        max_length=MOST_ALIASES,
        help_text="All further names under which clients may call it.",
    )
    take_alias = serializers.CharField(
        required=False, max_length=200, help_text="An alias of another model that becomes one of this model."
    )
    retires_at = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="From when on its requests are refused, which every answer announces until then; null: never.",
    )
    replacement = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=200,
        help_text="With retires_at: the model or alias to call instead.",
    )
    hub_token = serializers.CharField(
        max_length=LONGEST_VALUE,
        required=False,
        allow_null=True,
        write_only=True,
        help_text="With which nodes read a gated model on the hub. Stored sealed, never shown; null removes it.",
    )
    secret = serializers.CharField(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Name of the secret that its files are fetched with (`/secrets`); null: none.",
    )
    slots_per_replica = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_SLOTS_PER_REPLICA,
        help_text="Slots of one node that each replica takes. This and the options below replace all replicas.",
    )
    context_tokens = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=LARGEST_CONTEXT,
        help_text="Longest prompt and completion together; 0: the model's own, as far as it fits into the memory.",
    )
    kv_dtype = serializers.CharField(
        required=False, max_length=40, help_text="Type of the KV cache's values, as fp8; auto: the model's."
    )
    quantization = serializers.CharField(
        required=False, max_length=40, help_text="By what weights are quantised, as fp8; auto: as their files say."
    )
    host_memory_gib = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=engine_options.MOST_HOST_MEMORY_GIB,
        help_text="The host's memory for KV blocks that leave the GPUs of a replica, all together.",
    )
    pipeline_parallel = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=engine_options.MOST_STAGES,
        help_text="Stages that the layers are divided into; each has slots_per_replica / stages GPUs.",
    )
    lora_adapters = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=engine_options.MOST_ADAPTERS,
        help_text="LoRA adapters that one batch may use.",
    )
    lora_rank = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=engine_options.MOST_RANK,
        help_text="The largest rank of such an adapter.",
    )
    engine_version = serializers.CharField(
        required=False,
        max_length=64,
        help_text="Version of the engine that a node has, in full or its beginning. `engines` of a node lists them.",
    )
    engine_args = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_ARGUMENT, trim_whitespace=False),
        required=False,
        max_length=MOST_ARGUMENTS,
        help_text="All raw arguments of the engine that are chosen; those of the model's family and task are added.",
    )


class ChangedModelSerializer(ModelSerializer):
    """A model after a change."""

    notes = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Sentences: what could not be checked, and why."
    )


class ModelsView(ApiView):
    """The models that the caller sees."""

    permission_classes = (OperatorChanges,)

    @extend_schema(
        operation_id="deploy_model",
        request=NewModelSerializer,
        responses={
            200: DeployedSerializer,
            201: DeployedSerializer,
            **error_responses(400, 403, 404, 409),
        },
    )
    def post(self, request: Request) -> Response:
        """Deploy a model on a pool, or change what a deployed one of that name serves. Operators only.

        Name, source, memory and the engine's arguments are checked before anything changes. With `dry_run` nothing
        does: the response, 200, has the sizer's figures, and what is not known.
        """
        body = NewModelSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        actor, values = principal_of(request).actor, body.validated_data
        if body.price_rates() is not None:
            operator_rights.require_may_set_prices(principal_of(request))
        spec, pool, notes = body.spec(), body.pool_row(), list[str]()
        deploying.checked(spec, pool)
        preview = deploy_preview.of(spec, pool, values["replicas"])
        if values["dry_run"]:
            return Response(model_deployment.document(preview, None, notes))
        made = deploying.deploy(actor, spec, pool, values["replicas"], price=body.price_rates(), warn=notes.append)
        return Response(model_deployment.document(preview, made.name, notes), status=201)

    @extend_schema(
        operation_id="list_models",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(ModelSerializer, "CatalogueList"), **error_responses(400)},
    )
    def get(self, request: Request) -> Response:
        """List models with their revisions, newest first."""
        page = pagination.page_request(request)
        principal = principal_of(request)
        found = tenant_reads.newest(principal, lambda: pagination.read_page(visible(principal), page), page.limit + 1)
        rows = with_revisions(found, principal)
        return Response(pagination.page_document(rows, ModelSerializer, page.limit))


class ModelView(ApiView):
    """One model."""

    permission_classes = (OperatorChanges,)

    @extend_schema(operation_id="get_model", responses={200: ModelSerializer, **error_responses(404)})
    def get(self, request: Request, name: str) -> Response:
        """Return the model with its revisions."""
        principal = principal_of(request)
        named = visible(principal).filter(name=_storable(name))
        found = tenant_reads.newest(principal, lambda: list(named.all()), 1)
        if not found:
            raise NotFound("model", name)
        return Response(ModelSerializer(with_revisions(found, principal)[0]).data)

    @extend_schema(
        operation_id="change_model",
        request=ModelChangeSerializer,
        responses={200: ChangedModelSerializer, **error_responses(400, 403, 404, 409)},
    )
    def patch(self, request: Request, name: str) -> Response:
        """Rename, archive, restore, alias, share or retire a model, or change its options. Operators only.

        The model is given by its name or an alias. The engine's own parser checks new options and arguments first,
        which takes seconds for vLLM; what it refuses is a 400 with its sentence. A portal without the engine says in
        `notes` that they are not checked.
        """
        body = ModelChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        principal = principal_of(request)
        given = dict(body.validated_data)
        options = {each.name: given.pop(each.name) for each in fields(OptionChange) if each.name in given}
        if "engine_args" in options:
            options["engine_args"] = tuple(options["engine_args"])
        for name_or_value in ("hub_token", "secret"):
            if name_or_value in given:
                given[name_or_value] = given[name_or_value] or ""
        if retirement := _retirement(given):
            given["retirement"] = retirement
        wanted = ModelChange(**given, options=OptionChange(**options))
        notes: list[str] = []
        changed = model_changes.change(principal.actor, _storable(name), wanted, warn=notes.append)
        return Response({**ModelSerializer(with_revisions([changed], principal)[0]).data, "notes": notes})


def _retirement(given: dict[str, Any]) -> Retirement | None:
    """Take what a body says of the model's retirement out of it. Raises ValidationError."""
    replacement = given.pop("replacement", None)
    if "retires_at" in given:
        return Retirement(retires_at=given.pop("retires_at"), replacement=replacement or "")
    if replacement is not None:
        raise serializers.ValidationError({"replacement": "Give it together with retires_at."})
    return None


def _storable(name: str) -> str:
    """Return a name from an address. Raises NotFound for NUL, which PostgreSQL refuses to compare with."""
    if "\0" in name:
        raise NotFound("model", name)
    return name


def visible(principal: Principal) -> QuerySet[Model]:
    """Return the models that this principal sees: public models, and those of or shared with its own tenants."""
    every = Model.objects.select_related("base")
    if principal.tenants is None:
        return every
    own = list(principal.tenants)
    return every.filter(Q(visibility=Model.Visibility.PUBLIC) | Q(owner_id__in=own) | Q(shared_with__overlap=own))


def with_revisions(models: Sequence[Model], principal: Principal) -> list[CatalogueEntry]:
    """Return these models as the principal sees them, with revisions and aliases, read in a few queries.

    The models were read behind row-level security; the owner of a public one is another tenant.
    """
    named = {model.owner_id for model in models}
    if principal.is_operator:
        named |= {tenant_id for model in models for tenant_id in model.shared_with}
    slugs = dict(Tenant.objects.filter(id__in=named).values_list("id", "slug"))
    revisions: dict[UUID, list[ModelRevision]] = {model.id: [] for model in models}
    for revision in ModelRevision.objects.filter(model__in=models).order_by("-superseded_at", "-active_from"):
        if not principal.is_operator:
            # of this object, which is not saved
            revision.engine_version, revision.engine_args, revision.options = "", [], None
        revisions[revision.model_id].append(revision)
    deployed = Deployment.objects.select_related("revision").filter(revision__model__in=models, archived_at=None)
    wanted = rollouts.all_as_wanted(deployed) if principal.is_operator else []
    slots = {each.revision.model_id: each.slots_per_replica for each in wanted}
    aliases: dict[UUID, list[str]] = {model.id: [] for model in models}
    for alias in ModelAlias.objects.filter(model__in=models).order_by("name"):
        aliases[alias.model_id].append(alias.name)
    links = ModelSecret.objects.filter(model__in=models) if principal.is_operator else ModelSecret.objects.none()
    named_secrets = dict(links.values_list("model_id", "secret__name"))
    priced = _priced({model.name for model in models}, principal)
    seen = _seen({model.replacement for model in models if model.replacement}, principal)
    return [
        CatalogueEntry(
            model=model,
            owner=slugs[model.owner_id],
            tenants=sorted(slugs[tenant_id] for tenant_id in model.shared_with if tenant_id in slugs)
            if principal.is_operator
            else [],
            aliases=aliases[model.id],
            revisions=revisions[model.id],
            priced=model.name in priced,
            slots_per_replica=slots.get(model.id),
            base=model.base.name if model.base else "",
            secret=named_secrets.get(model.id, ""),
            replacement=model.replacement if model.replacement in seen else "",
        )
        for model in models
    ]


def _seen(names: Collection[str], principal: Principal) -> set[str]:
    """Return which of these names and aliases are of models that the principal sees."""
    if not names:
        return set()
    aliases = dict(ModelAlias.objects.filter(name__in=names).values_list("name", "model_id"))
    named = visible(principal).filter(Q(name__in=names) | Q(id__in=list(aliases.values())))
    rows = tenant_reads.newest(principal, lambda: list(named.all()), len(names))
    ids = {row.id for row in rows}
    return {row.name for row in rows} | {name for name, model_id in aliases.items() if model_id in ids}


def _priced(names: Collection[str], principal: Principal) -> set[str]:
    """Return which of the models have a price for the caller, read behind row-level security for tenants."""
    if principal.tenants is None:
        return prices.priced(names)
    found: set[str] = set()
    for tenant_id in sorted(principal.tenants):
        with as_tenant(tenant_id):
            found |= prices.priced(names, [tenant_id])
    return found

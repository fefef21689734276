"""The body of ``POST /api/v1/models``: a model to deploy, and what is known of it before."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from billing.pricing.rating import Rates
from catalogue import engine_options
from catalogue.engine_options import EngineOptions
from portal.api.serializer_fields import SwitchField
from portal.fleet.deploy_preview import Preview
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS
from workers.errors import NotFound
from workers.fleet.deployments import MAX_REPLICAS, MAX_SLOTS_PER_REPLICA
from workers.model_sources.source import ModelSpec
from workers.models import Pool

#: What the column stores.
LARGEST_CONTEXT = 2**31 - 1
MOST_ARGUMENTS = 1000
LONGEST_ARGUMENT = 10_000


class NewModelPriceSerializer(serializers.Serializer[Rates]):
    """A price in the platform's book, in pico-units of its currency for a token."""

    prompt_pico = serializers.IntegerField(min_value=0)
    cached_prompt_pico = serializers.IntegerField(min_value=0)
    completion_pico = serializers.IntegerField(min_value=0)


class NewModelSerializer(serializers.Serializer[ModelSpec]):
    """A model to deploy on a pool, as `hearth deploy` takes it."""

    name = serializers.CharField(max_length=200)
    source = serializers.CharField(  # type: ignore[assignment]  # a field of that name, not of this serializer
        max_length=500, default="", allow_blank=True, help_text="Hugging Face id or folder; empty: the tiny model."
    )
    revision = serializers.CharField(
        max_length=200, default="", allow_blank=True, help_text="Branch, tag or commit of a Hugging Face id."
    )
    task = serializers.ChoiceField(choices=("text", "embeddings"), default="text")
    engine = serializers.ChoiceField(choices=("vllm", "simulated"), default="vllm")
    pool = serializers.CharField(max_length=63)
    replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS, default=1)
    slots_per_replica = serializers.IntegerField(min_value=1, max_value=MAX_SLOTS_PER_REPLICA, default=1)
    context_tokens = serializers.IntegerField(
        min_value=0, max_value=LARGEST_CONTEXT, default=DEFAULT_CONTEXT_TOKENS, help_text="0: the model's own."
    )
    kv_dtype = serializers.CharField(max_length=40, default=engine_options.AUTO)
    quantization = serializers.CharField(max_length=40, default=engine_options.AUTO)
    engine_args = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_ARGUMENT, trim_whitespace=False),
        default=list,
        max_length=MOST_ARGUMENTS,
    )
    tenants = serializers.ListField(
        child=serializers.CharField(max_length=63),
        default=None,
        allow_null=True,
        max_length=1000,
        help_text="Slugs of those that see it; null: every tenant, of a new model.",
    )
    secret = serializers.CharField(
        max_length=63, default=None, allow_null=True, help_text="Name of the secret that its files are fetched with."
    )
    price = NewModelPriceSerializer(default=None, allow_null=True, help_text="Of the platform's book; null: none yet.")
    dry_run = SwitchField(default=False, help_text="Only check it, and say what is known of its size.")

    def spec(self) -> ModelSpec:
        """Return the model of a valid body."""
        values: dict[str, Any] = self.validated_data
        tenants = values["tenants"]
        return ModelSpec(
            name=values["name"],
            source=values["source"],
            engine=values["engine"],
            task=values["task"],
            commit=values["revision"],
            context_tokens=values["context_tokens"],
            slots_per_replica=values["slots_per_replica"],
            options=EngineOptions(kv_dtype=values["kv_dtype"], quantization=values["quantization"]),
            engine_args=tuple(values["engine_args"]),
            tenants=None if tenants is None else tuple(tenants),
            secret=values["secret"],
        )

    def pool_row(self) -> Pool:
        """Return the pool of a valid body. Raises NotFound."""
        name = self.validated_data["pool"]
        found = Pool.objects.filter(name=name).first()
        if found is None:
            raise NotFound("pool", name, tuple(Pool.objects.order_by("name").values_list("name", flat=True)[:20]))
        return found

    def price_rates(self) -> Rates | None:
        """Return the price of a valid body, None if it has none."""
        given = self.validated_data["price"]
        return None if given is None else Rates(**given)


class FigureSerializer(serializers.Serializer[Any]):
    """A figure of the sizer."""

    name = serializers.CharField(read_only=True)
    value = serializers.CharField(read_only=True)


class DeployedSerializer(serializers.Serializer[Any]):
    """What was deployed, or would be."""

    deployment = serializers.CharField(read_only=True, allow_null=True, help_text="Its name; null: nothing changed.")
    figures = FigureSerializer(many=True, read_only=True)
    notes = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="Sentences: what is not known, and what to know."
    )
    command = serializers.CharField(read_only=True, help_text="The same as a command.")


def document(preview: Preview, deployment: str | None, notes: list[str]) -> dict[str, Any]:
    """Return the response."""
    return {
        "deployment": deployment,
        "figures": [{"name": name, "value": value} for name, value in preview.figures],
        "notes": [*preview.notes, *notes],
        "command": preview.command,
    }

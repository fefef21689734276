"""The form that deploys a model."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from billing.pricing.rating import Rates
from catalogue import engine_options
from catalogue.engine_options import EngineOptions
from portal.forms.base import PageForm, choice, whole_number
from portal.forms.fleet.models import offer_secrets, offer_tenants
from tenants.models import Tenant
from workers.engines.driver import DEFAULT_CONTEXT_TOKENS
from workers.fleet.deployments import MAX_REPLICAS, MAX_SLOTS_PER_REPLICA
from workers.model_sources.source import ModelSpec
from workers.models import Pool

_NAME = _("Enter a name of at most 200 characters.")
#: A dollar for a million tokens is so many pico-dollars for one.
PICO_PER_UNIT = 10**6
PRICES = ("prompt", "cached_prompt", "completion")


def _price(label: str) -> forms.DecimalField:
    problem = _("Enter an amount from 0 to 1,000 with at most six decimals, or leave all three empty.")
    return forms.DecimalField(
        label=label,
        required=False,
        min_value=0,
        max_value=1000,
        decimal_places=6,
        error_messages=dict.fromkeys(
            ("invalid", "min_value", "max_value", "max_digits", "max_decimal_places", "max_whole_digits"), problem
        ),
        widget=forms.NumberInput({"step": "any", "placeholder": _("none")}),
    )


class DeployForm(PageForm):
    """A model to serve: what it is, where and how it runs, who sees it, and what it costs."""

    id_prefix = "deploy"
    fields_of_errors = {"model name": "name", "model": "name", "number of pipeline stages": "slots_per_replica"}

    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("What clients call it. The name of a deployed model changes what that one serves."),
        error_messages={"required": _NAME, "max_length": _NAME},
    )
    source = forms.CharField(
        label=_("Source"),
        max_length=500,
        required=False,
        help_text=_("A Hugging Face id, or a folder on this machine and on every node. Empty: the tiny model."),
    )
    commit = forms.CharField(
        label=_("Revision"), max_length=200, required=False, help_text=_("Branch, tag or commit of a Hugging Face id.")
    )
    task = choice(_("Task"), (("text", "text"), ("embeddings", "embeddings")))
    engine = choice(_("Engine"), (("vllm", "vLLM"), ("simulated", "simulated")))
    pool = choice(_("Pool"), ())
    replicas = whole_number(_("Replicas"), MAX_REPLICAS, required=True)
    slots_per_replica = whole_number(
        _("Slots per replica"),
        MAX_SLOTS_PER_REPLICA,
        smallest=1,
        required=True,
        help_text=_("Of one node. The model is divided among as many GPUs."),
    )
    context_tokens = whole_number(
        _("Context, tokens"),
        2**31 - 1,
        required=True,
        help_text=_("Prompt and completion together. 0: the model's own."),
    )
    kv_dtype = forms.CharField(max_length=40, label=_("KV cache type"), help_text=_("As fp8. auto: the model's."))
    quantization = forms.CharField(
        max_length=40, label=_("Quantisation"), help_text=_("As fp8. auto: as its files say.")
    )
    engine_args = forms.CharField(
        required=False,
        max_length=100_000,
        label=_("Further arguments"),
        help_text=_("Of the engine, quoted as for a shell."),
    )
    visibility = choice(_("Visible to"), (("public", _("every tenant")), ("private", _("the tenants chosen below"))))
    tenants = forms.MultipleChoiceField(
        required=False, label=_("Tenants"), help_text=_("Only for a model that is not visible to every tenant.")
    )
    secret = forms.ChoiceField(
        required=False, label=_("Secret"), help_text=_("With which nodes fetch a gated or private model from the hub.")
    )
    prompt = _price(_("Prompt tokens, dollars per million"))
    cached_prompt = _price(_("Cached prompt tokens, dollars per million"))
    completion = _price(_("Completion tokens, dollars per million"))
    #: What was checked before; see :meth:`is_checked`.
    checked = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput())

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """Offer the pools, and the first active tenants."""
        auto = engine_options.AUTO
        initial = {
            "replicas": 1,
            "slots_per_replica": 1,
            "context_tokens": DEFAULT_CONTEXT_TOKENS,
            "kv_dtype": auto,
            "quantization": auto,
        }
        super().__init__(data, initial=initial)
        offer_secrets(self.fields["secret"])
        offer_tenants(self.fields["tenants"], Tenant.objects.none())
        pools = self.fields["pool"]
        assert isinstance(pools, forms.ChoiceField)
        rows = Pool.objects.order_by("priority", "name").values_list("name", "kind")
        pools.choices = [(name, f"{name} ({kind})") for name, kind in rows]

    def clean_engine_args(self) -> tuple[str, ...]:
        """Return the arguments, split as a shell does. Raises ValidationError."""
        try:
            return tuple(shlex.split(self.cleaned_data["engine_args"]))
        except ValueError as error:
            raise ValidationError(f"{error}.") from error

    def clean(self) -> dict[str, Any]:
        """Require all prices or none."""
        values: dict[str, Any] = super().clean() or {}
        given = [name for name in PRICES if values.get(name) is not None]
        if given and len(given) < len(PRICES):
            for name in PRICES:
                if name not in given and name not in self.errors:
                    self.add_error(name, _("Enter all three prices, or none."))
        return values

    def spec(self) -> ModelSpec:
        """Return the model of a valid form."""
        values = self.cleaned_data
        return ModelSpec(
            name=values["name"],
            source=values["source"],
            engine=values["engine"],
            task=values["task"],
            commit=values["commit"],
            context_tokens=values["context_tokens"],
            slots_per_replica=values["slots_per_replica"],
            options=EngineOptions(kv_dtype=values["kv_dtype"], quantization=values["quantization"]),
            engine_args=values["engine_args"],
            tenants=tuple(values["tenants"]) if values["visibility"] == "private" else None,
            secret=values["secret"] or None,
        )

    def pool_row(self) -> Pool:
        """Return the pool of a valid form."""
        return Pool.objects.get(name=self.cleaned_data["pool"])

    def price(self) -> Rates | None:
        """Return the price of a valid form; None for none."""
        values = self.cleaned_data
        if values["prompt"] is None:
            return None
        return Rates(**{f"{name}_pico": int(Decimal(values[name]) * PICO_PER_UNIT) for name in PRICES})

    def fingerprint(self) -> str:
        """Return what stands for the values of a valid form."""
        values = {name: str(value) for name, value in sorted(self.cleaned_data.items()) if name != "checked"}
        return hashlib.sha256(repr(values).encode()).hexdigest()

    @property
    def is_checked(self) -> bool:
        """Return whether these values were shown with what is known of them."""
        return bool(self.cleaned_data["checked"] == self.fingerprint())

"""The form that changes the options of a deployed model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_noop as _
from msgspec.structs import asdict

from catalogue import engine_options
from portal.forms.base import PageForm, whole_number
from workers.fleet import engine_versions
from workers.fleet.deployments import MAX_SLOTS_PER_REPLICA
from workers.fleet.model_options import OptionChange
from workers.model_sources.source import own_arguments
from workers.models import Deployment

LARGEST_CONTEXT = 2**31 - 1


class EngineOptionsForm(PageForm):
    """The slots of a model's replicas, its context, and the typed options of its engine."""

    id_prefix = "engine"

    slots_per_replica = whole_number(
        _("Slots per replica"),
        MAX_SLOTS_PER_REPLICA,
        smallest=1,
        required=True,
        help_text=_("Of one node. The model is divided among as many GPUs."),
    )
    context_tokens = whole_number(
        _("Context, tokens"),
        LARGEST_CONTEXT,
        required=True,
        help_text=_("Longest prompt and completion together. 0: the model's own, as far as it fits into the memory."),
    )
    kv_dtype = forms.CharField(max_length=40, label=_("KV cache type"), help_text=_("As fp8. auto: the model's."))
    quantization = forms.CharField(
        max_length=40, label=_("Quantisation"), help_text=_("Of the weights, as fp8. auto: as their files say.")
    )
    host_memory_gib = whole_number(
        _("Host memory for KV blocks, GiB"),
        engine_options.MOST_HOST_MEMORY_GIB,
        required=True,
        help_text=_("For blocks that leave the GPUs of a replica. 0: none."),
    )
    pipeline_parallel = whole_number(
        _("Pipeline stages"),
        engine_options.MOST_STAGES,
        smallest=1,
        required=True,
        help_text=_("The layers are divided into these; each has slots / stages GPUs."),
    )
    lora_adapters = whole_number(
        _("LoRA adapters"), engine_options.MOST_ADAPTERS, required=True, help_text=_("In one batch. 0: none.")
    )
    lora_rank = whole_number(_("Largest LoRA rank"), engine_options.MOST_RANK, smallest=1, required=True)

    engine_version = forms.ChoiceField(
        required=False,
        label=_("Version of the engine"),
        help_text=_("A version that nodes have: `hearth engine install`."),
    )

    engine_args = forms.CharField(
        required=False,
        max_length=100_000,
        label=_("Further arguments"),
        help_text=_("Of the engine itself, quoted as for a shell. Those of the model's family are added."),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, deployment: Deployment) -> None:
        """Show the options that the deployment has."""
        revision = deployment.revision
        present = {
            "slots_per_replica": deployment.slots_per_replica,
            "context_tokens": revision.context_length_tokens,
            **asdict(engine_options.from_json(revision.options)),
            "engine_version": revision.engine_version,
            "engine_args": shlex.join(own_arguments(revision)),
        }
        super().__init__(data, initial=present)
        counted = engine_versions.on_nodes(revision.engine)
        offered = {
            version: ngettext("%(version)s, on %(count)s node", "%(version)s, on %(count)s nodes", count)
            % {"version": version, "count": count}
            for version, count in counted.items()
        }
        own = gettext("the first one of each node") if not revision.engine_version else revision.engine_version
        field = self.fields["engine_version"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(({revision.engine_version: own} | offered).items())

    def change(self) -> OptionChange:
        """Return what a valid form changes."""
        return OptionChange(**{name: self.cleaned_data[name] for name in self.changed_data})

    def clean_engine_args(self) -> tuple[str, ...]:
        """Return the arguments, split as a shell does. Raises ValidationError."""
        try:
            return tuple(shlex.split(self.cleaned_data["engine_args"]))
        except ValueError as error:
            raise ValidationError(f"{error}.") from error

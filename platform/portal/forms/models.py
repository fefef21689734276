"""The form that changes a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from catalogue import administration
from catalogue.models import Model
from portal.fleet.model_changes import ModelChange
from portal.forms.base import PageForm
from tenants.models import Tenant
from workers.models import HubToken
from workers.weights.hub_tokens import LONGEST_TOKEN

_NAME = "Enter a name of at most 200 characters."
#: Active tenants offered as those that see a private model, beside those that see it now.
MOST_TENANTS = 1000


class ModelForm(PageForm):
    """What an operator changes of a model. Errors of the model itself stand beside their field."""

    id_prefix = "model"

    name = forms.CharField(
        label="Name",
        max_length=200,
        help_text="The old name becomes an alias, and the replicas are replaced.",
        error_messages={"required": _NAME, "max_length": _NAME},
    )
    aliases = forms.CharField(
        required=False, max_length=4000, label="Aliases", help_text="Further names for clients, separated by spaces."
    )
    visibility = forms.ChoiceField(
        choices=[("public", "every tenant"), ("private", "its owner and the tenants chosen below")], label="Visible to"
    )
    tenants = forms.MultipleChoiceField(
        required=False, label="Tenants", help_text="Only for a model that is not visible to every tenant."
    )

    hub_token = forms.CharField(
        required=False,
        max_length=LONGEST_TOKEN,
        label="Token for the hub",
        help_text="For a gated or private model. It is never shown; leave it empty to keep the present one.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )
    remove_hub_token = forms.BooleanField(required=False, label="Remove the token for the hub")

    def __init__(self, data: Mapping[str, Any] | None = None, *, model: Model) -> None:
        """Offer the first active tenants, and all that the model is shared with: saving removes none of them."""
        initial = {
            "name": model.name,
            "aliases": " ".join(model.aliases.order_by("name").values_list("name", flat=True)),
            "visibility": model.visibility,
            "tenants": administration.slugs_of(model.shared_with),
        }
        super().__init__(data, initial=initial)
        if not HubToken.objects.filter(model=model).exists():
            del self.fields["remove_hub_token"]
        active = Tenant.objects.exclude(state=Tenant.State.ARCHIVED).order_by("slug")[:MOST_TENANTS]
        shared = Tenant.objects.filter(id__in=model.shared_with)
        offered = {tenant.slug: tenant for tenant in (*active, *shared)}
        field = self.fields["tenants"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(slug, f"{tenant.name} ({slug})") for slug, tenant in sorted(offered.items())]

    def change(self, old_name: str) -> ModelChange:
        """Return the change of a valid form. The model's old name becomes an alias."""
        values = self.cleaned_data
        removes_token = values.get("remove_hub_token", False)
        kept = {old_name} - {values["name"]}
        public = values["visibility"] == Model.Visibility.PUBLIC
        return ModelChange(
            name=values["name"],
            aliases=tuple({*values["aliases"].split()} | kept),
            visibility=values["visibility"],
            tenants=() if public else tuple(values["tenants"]),
            hub_token="" if removes_token else values["hub_token"] or None,
        )

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
from workers.models import Secret
from workers.weights import secrets
from workers.weights.secrets import LONGEST_VALUE

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

    secret = forms.ChoiceField(
        required=False, label="Secret", help_text="With which nodes fetch a gated or private model from the hub."
    )
    hub_token = forms.CharField(
        required=False,
        max_length=LONGEST_VALUE,
        label="Token of its own",
        help_text="Instead of a secret with a name. It is never shown; leave it empty to keep what is chosen above.",
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, model: Model) -> None:
        """Offer the first active tenants, and all that the model is shared with: saving removes none of them."""
        initial = {
            "name": model.name,
            "aliases": " ".join(model.aliases.order_by("name").values_list("name", flat=True)),
            "visibility": model.visibility,
            "tenants": administration.slugs_of(model.shared_with),
            "secret": secrets.of_model(model.id),
        }
        super().__init__(data, initial=initial)
        names = Secret.objects.order_by("name").values_list("name", flat=True)
        chooses = self.fields["secret"]
        assert isinstance(chooses, forms.ChoiceField)
        chooses.choices = [("", "none"), *((name, name) for name in names)]
        active = Tenant.objects.exclude(state=Tenant.State.ARCHIVED).order_by("slug")[:MOST_TENANTS]
        shared = Tenant.objects.filter(id__in=model.shared_with)
        offered = {tenant.slug: tenant for tenant in (*active, *shared)}
        field = self.fields["tenants"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(slug, f"{tenant.name} ({slug})") for slug, tenant in sorted(offered.items())]

    def change(self, old_name: str) -> ModelChange:
        """Return the change of a valid form. The model's old name becomes an alias."""
        values = self.cleaned_data
        kept = {old_name} - {values["name"]}
        public = values["visibility"] == Model.Visibility.PUBLIC
        return ModelChange(
            name=values["name"],
            aliases=tuple({*values["aliases"].split()} | kept),
            visibility=values["visibility"],
            tenants=() if public else tuple(values["tenants"]),
            secret=values["secret"] if "secret" in self.changed_data else None,
            hub_token=values["hub_token"] or None,
        )

"""The forms that change a model and load an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from catalogue import administration
from catalogue.models import Model, ModelAlias
from portal.fleet.model_changes import ModelChange, Retirement
from portal.forms.base import PageForm, choice
from tenants.ids import PLATFORM_SLUG
from tenants.models import Tenant
from workers.model_sources.adapters import AdapterSpec
from workers.models import Secret
from workers.weights import secrets
from workers.weights.secrets import LONGEST_VALUE

_NAME = _("Enter a name of at most 200 characters.")
_ERRORS = {"required": _NAME, "max_length": _NAME}
#: Active tenants offered as those that see a private model, beside those that see it now.
MOST_TENANTS = 1000


class ModelForm(PageForm):
    """What an operator changes of a model. Errors of the model itself stand beside their field."""

    id_prefix = "model"
    fields_of_errors = {"retirement date": "retires_at"}

    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("The old name becomes an alias, and a rollout replaces the replicas."),
        error_messages=_ERRORS,
    )
    aliases = forms.CharField(
        required=False,
        max_length=4000,
        label=_("Aliases"),
        help_text=_("Further names for clients, separated by spaces."),
    )
    visibility = forms.ChoiceField(
        choices=[("public", _("every tenant")), ("private", _("its owner and the tenants chosen below"))],
        label=_("Visible to"),
    )
    tenants = forms.MultipleChoiceField(
        required=False, label=_("Tenants"), help_text=_("Only for a model that is not visible to every tenant.")
    )

    retires_at = forms.DateTimeField(
        required=False,
        label=_("Retires at, UTC"),
        help_text=_("From then on its requests are refused; every answer announces it. Empty: never."),
        error_messages={"invalid": _("Enter a date and a time, as 2027-03-31T00:00.")},
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    replacement = forms.CharField(
        required=False,
        max_length=200,
        label=_("Replacement"),
        help_text=_("What to call instead of a model that retires: a model, or an alias of one."),
    )
    secret = forms.ChoiceField(
        required=False, label=_("Secret"), help_text=_("With which nodes fetch a gated or private model from the hub.")
    )
    hub_token = forms.CharField(
        required=False,
        max_length=LONGEST_VALUE,
        label=_("Token of its own"),
        help_text=_("Instead of a secret with a name. It is never shown; leave it empty to keep what is chosen above."),
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, model: Model) -> None:
        """Offer the first active tenants, and all that the model is shared with: saving removes none of them."""
        initial = {
            "name": model.name,
            "aliases": " ".join(model.aliases.order_by("name").values_list("name", flat=True)),
            "visibility": model.visibility,
            "tenants": administration.slugs_of(model.shared_with),
            "retires_at": None if model.retires_at is None else model.retires_at.replace(second=0),
            "replacement": model.replacement,
            "secret": secrets.of_model(model.id),
        }
        super().__init__(data, initial=initial)
        offer_secrets(self.fields["secret"])
        offer_tenants(self.fields["tenants"], Tenant.objects.filter(id__in=model.shared_with))

    def change(self, old_name: str) -> ModelChange:
        """Return the change of a valid form. The model's old name becomes an alias."""
        values = self.cleaned_data
        kept = {old_name} - {values["name"]}
        retires = {"retires_at", "replacement"}.intersection(self.changed_data)
        public = values["visibility"] == Model.Visibility.PUBLIC
        return ModelChange(
            name=values["name"],
            aliases=tuple({*values["aliases"].split()} | kept),
            visibility=values["visibility"],
            tenants=() if public else tuple(values["tenants"]),
            secret=values["secret"] if "secret" in self.changed_data else None,
            retirement=Retirement(retires_at=values["retires_at"], replacement=values["replacement"])
            if retires
            else None,
            hub_token=values["hub_token"] or None,
        )


class AdapterForm(PageForm):
    """A LoRA adapter to load into the replicas of a model."""

    id_prefix = "adapter"
    fields_of_errors = {"model name": "name", "model": "name"}

    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("As qwen:tone, after the model that it changes."),
        error_messages=_ERRORS,
    )
    source = forms.CharField(
        label=_("Source"),
        max_length=500,
        help_text=_("A folder on this machine and on every node, or a Hugging Face id."),
    )
    revision = forms.CharField(
        label=_("Revision"), max_length=200, required=False, help_text=_("Branch, tag or commit of a Hugging Face id.")
    )
    owner = forms.ChoiceField(label=_("Owner"), help_text=_("Only this tenant sees it, until you share it."))
    secret = forms.ChoiceField(
        required=False,
        label=_("Secret"),
        help_text=_("With which nodes fetch a gated or private adapter from the hub."),
    )

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """Offer the first active tenants as owners."""
        super().__init__(data, initial={"owner": PLATFORM_SLUG})
        offer_secrets(self.fields["secret"])
        active = Tenant.objects.exclude(state=Tenant.State.ARCHIVED).order_by("slug")[:MOST_TENANTS]
        field = self.fields["owner"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(tenant.slug, f"{tenant.name} ({tenant.slug})") for tenant in active]

    def spec(self) -> AdapterSpec:
        """Return the adapter of a valid form. No secret: as before."""
        values = self.cleaned_data
        return AdapterSpec(
            name=values["name"],
            source=values["source"],
            commit=values["revision"],
            owner=values["owner"],
            secret=values["secret"] or None,
        )


class TakeAliasForm(PageForm):
    """An alias of another model that becomes one of this model."""

    id_prefix = "take"

    alias = choice(_("Alias"), (), help_text=_("Requests for it go to this model within a second."))

    def __init__(self, data: Mapping[str, Any] | None = None, *, model: Model) -> None:
        """Offer the aliases of other models."""
        super().__init__(data)
        rows = ModelAlias.objects.exclude(model=model).order_by("name").values_list("name", "model__name")
        field = self.fields["alias"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (name, gettext("%(name)s, now of %(other)s") % {"name": name, "other": other})
            for name, other in rows[:MOST_TENANTS]
        ]


def offer_tenants(field: forms.Field, also: QuerySet[Tenant]) -> None:
    """Offer the first active tenants, and ``also`` these, in a field of several slugs."""
    active = Tenant.objects.exclude(state=Tenant.State.ARCHIVED).order_by("slug")[:MOST_TENANTS]
    offered = {tenant.slug: tenant for tenant in (*active, *also)}
    assert isinstance(field, forms.MultipleChoiceField)
    field.choices = [(slug, f"{tenant.name} ({slug})") for slug, tenant in sorted(offered.items())]


def offer_secrets(field: forms.Field) -> None:
    """Offer the secrets by name in a field, and none."""
    names = Secret.objects.order_by("name").values_list("name", flat=True)
    assert isinstance(field, forms.ChoiceField)
    field.choices = [("", gettext("none")), *((name, name) for name in names)]

"""The form that sets a secret."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm
from workers.weights.secrets import LONGEST_VALUE


class SecretForm(PageForm):
    """A secret's name and its value, which is not shown again."""

    id_prefix = "secret"
    fields_of_errors = {"secret name": "name", "secret value": "value"}

    name = forms.CharField(
        max_length=63, label=_("Name"), help_text=_("As hf-meta. The name of a present one: a new value.")
    )
    value = forms.CharField(
        max_length=LONGEST_VALUE,
        label=_("Value"),
        help_text=_("A token for the hub. It is stored sealed and never shown."),
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
    )

"""The form that creates a tenant."""

from __future__ import annotations

from django import forms

from portal.forms.base import PageForm

_NAME = "Enter a name of at most 200 characters."


class NewTenantForm(PageForm):
    """Slug and name of a new tenant."""

    id_prefix = "tenant"

    slug = forms.CharField(
        label="Slug",
        help_text="In addresses: a-z, 0-9 and -",
        max_length=63,
        error_messages={
            "required": "Enter a slug: 1 to 63 characters a-z, 0-9 and -.",
            "max_length": "Enter at most 63 characters a-z, 0-9 and -.",
        },
        widget=forms.TextInput({"placeholder": "acme"}),
    )
    name = forms.CharField(
        label="Name",
        required=False,
        max_length=200,
        error_messages={"max_length": _NAME},
        widget=forms.TextInput({"placeholder": "Acme"}),
    )
    fields_of_errors = {"tenant": "slug"}

"""The form of a person's own name."""

from __future__ import annotations

from django import forms

from portal.forms.base import PageForm


class ProfileForm(PageForm):
    """Given name and family name, which lists of people show beside the sign-in name."""

    id_prefix = "profile"

    first_name = forms.CharField(
        required=False, max_length=150, label="Given name", widget=forms.TextInput({"autocomplete": "given-name"})
    )
    last_name = forms.CharField(
        required=False, max_length=150, label="Family name", widget=forms.TextInput({"autocomplete": "family-name"})
    )

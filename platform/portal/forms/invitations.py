"""Forms of invitations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from portal.forms.base import PageForm, choice


class InvitationForm(PageForm):
    """A role, and where the link is sent."""

    id_prefix = "invite"
    fields_of_errors = {"e-mail address": "email"}

    role = choice("Role", [])
    email = forms.CharField(
        required=False,
        max_length=254,
        label="E-mail",
        help_text="The link is sent there. Empty: pass it on yourself.",
        widget=forms.EmailInput({"autocomplete": "off"}),
    )

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, roles: Sequence[str], sends: bool, role: str = "viewer"
    ) -> None:
        super().__init__(data, initial={"role": role})
        field = self.fields["role"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(each, each) for each in roles]
        if not sends:
            del self.fields["email"]


class AcceptForm(PageForm):
    """The account of a person who accepts an invitation."""

    id_prefix = "accept"
    fields_of_errors = {"person": "username"}

    username = forms.CharField(
        max_length=150,
        label="Sign-in name",
        help_text="Letters, digits and @ . + - _",
        widget=forms.TextInput({"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false"}),
    )
    password = forms.CharField(
        max_length=4096,
        strip=False,
        label="Password",
        help_text="At least 10 characters.",
        widget=forms.PasswordInput({"autocomplete": "new-password"}),
    )

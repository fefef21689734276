"""Forms of invitations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, choice


class InvitationForm(PageForm):
    """A role, and where the link is sent."""

    id_prefix = "invite"
    fields_of_errors = {"e-mail address": "email"}

    role = choice(_("Role"), [])
    email = forms.CharField(
        required=False,
        max_length=254,
        label="E-mail",
        help_text=_("The link is sent there. Empty: pass it on yourself."),
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
        label=_("Sign-in name"),
        help_text=_("Letters, digits and @ . + - _"),
        widget=forms.TextInput({"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false"}),
    )
    password = forms.CharField(
        max_length=4096,
        strip=False,
        label=_("Password"),
        help_text=_("At least 10 characters."),
        widget=forms.PasswordInput({"autocomplete": "new-password"}),
    )

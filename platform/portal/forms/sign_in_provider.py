"""The form of a tenant's sign-in provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, choice
from tenants.identity.models import SignInProvider
from tenants.identity.providers import LONGEST, ProviderTerms
from tenants.models import Membership


class RolesField(forms.CharField):
    """Lines of ``group = role``, read as pairs in order."""

    def __init__(self) -> None:
        super().__init__(label=_("Roles by group"), required=False, widget=forms.Textarea({"rows": 4}))
        self.allow(Membership.Role.values)

    def allow(self, roles: Sequence[str]) -> None:
        """Accept these roles."""
        self.roles = roles
        self.widget.attrs["placeholder"] = f"hearth = {roles[0]}\nengineering = {roles[2]}"
        self.help_text = gettext(
            "One line each: group = role. The first group that a person has decides. Roles: %(roles)s."
        ) % {"roles": ", ".join(roles)}

    def clean(self, value: Any) -> tuple[tuple[str, str], ...]:
        """Return the pairs. Raises ValidationError."""
        pairs = []
        for line in str(super().clean(value)).splitlines():
            if not line.strip():
                continue
            group, equals, role = (part.strip() for part in line.rpartition("="))
            if not equals or not group or role not in self.roles:
                raise ValidationError(f"“{line.strip()[:100]}” is not a group, =, and a role.")
            pairs.append((group, role))
        return tuple(pairs)


class ProviderForm(PageForm):
    """Issuer, client, and which groups have which role."""

    id_prefix = "provider"
    fields_of_errors = {
        "client id": "client_id",
        "client secret": "client_secret",
        "groups claim": "groups_claim",
        "default role": "default_role",
    }

    issuer = forms.CharField(
        label=_("Issuer URL"),
        max_length=LONGEST["issuer"],
        help_text=_("As the provider writes it, for example https://login.example.com/realms/acme."),
    )
    client_id = forms.CharField(label=_("Client id"), max_length=LONGEST["client id"])
    client_secret = forms.CharField(
        label=_("Client secret"),
        max_length=LONGEST["client secret"],
        required=False,
        widget=forms.PasswordInput({"autocomplete": "off"}),
        help_text=_("Kept sealed and never shown again. Empty: the stored one stays."),
    )
    groups_claim = forms.CharField(
        label=_("Claim with the groups"), max_length=LONGEST["groups claim"], help_text=_("Entra: groups or roles.")
    )
    roles = RolesField()
    default_role = choice(_("People without such a group"), (), required=False)

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, provider: SignInProvider | None, roles: Sequence[str]
    ) -> None:
        initial = {"groups_claim": "groups"}
        if provider is not None:
            initial = {
                "issuer": provider.issuer,
                "client_id": provider.client_id,
                "groups_claim": provider.groups_claim,
                "roles": "\n".join(f"{group} = {role}" for group, role in provider.roles),
                "default_role": provider.default_role,
            }
        super().__init__(data, initial=initial)
        by_group, default = self.fields["roles"], self.fields["default_role"]
        assert isinstance(by_group, RolesField)
        assert isinstance(default, forms.ChoiceField)
        by_group.allow(roles)
        default.choices = [
            ("", gettext("do not become members")),
            *((role, gettext("become %(role)s") % {"role": role}) for role in roles),
        ]

    def terms(self) -> ProviderTerms:
        """Return what was typed."""
        wanted = self.cleaned_data
        return ProviderTerms(**wanted | {"client_secret": wanted["client_secret"] or None})

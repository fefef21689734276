"""The forms that create, change and rotate an API key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_noop as _

from portal.forms.base import CHOOSE, Choice, PageForm, choice
from tenants.keys import keys
from tenants.models import ApiKey, Project

MAX_NAME_LENGTH = 200
MAX_MODELS = 200
#: Form value of a field that stays as it is.
KEEP = "keep"
#: The sets of scopes that the forms offer.
SCOPE_SETS: Mapping[str, Sequence[str]] = {
    "inference": keys.DEFAULT_SCOPES,
    "store-nothing": ("inference", "cache:read"),
    "no-cache": ("inference",),
    "read": (*keys.DEFAULT_SCOPES, "management:read"),
    "read-tenant": (*keys.DEFAULT_SCOPES, "management:read", "management:tenant"),
    "manage": (*keys.DEFAULT_SCOPES, "management:read", "management:write"),
    "manage-tenant": keys.SCOPES,
}
SCOPE_CHOICES: Sequence[Choice] = (
    ("inference", _("call models")),
    ("store-nothing", _("call models, store no answers in the cache")),
    ("no-cache", _("call models, without the prediction cache")),
    ("read", _("call models, read the usage of its project")),
    ("read-tenant", _("call models, read the usage of the whole tenant")),
    ("manage", _("call models, read usage and manage keys of its project")),
    ("manage-tenant", _("call models, read usage and manage keys of the whole tenant")),
)
#: What somebody who sees some projects only does not grant.
WHOLE_TENANT = ("read-tenant", "manage-tenant")
#: Seconds until the old key of a rotation expires.
OVERLAPS: Sequence[Choice] = (
    ("0", _("at once")),
    ("3600", _("in an hour")),
    ("86400", _("in a day")),
    ("604800", _("in 7 days")),
    ("2592000", _("in 30 days")),
)
#: Days until a key expires.
LIFETIMES: Sequence[Choice] = (
    ("never", _("never")),
    ("7", _("in 7 days")),
    ("30", _("in 30 days")),
    ("90", _("in 90 days")),
    ("365", _("in a year")),
)


def scope_choices(*, whole_tenant: bool) -> Sequence[Choice]:
    """Return the sets of scopes that a form offers: those of the whole tenant to those who see it."""
    return [(name, gettext(words)) for name, words in SCOPE_CHOICES if whole_tenant or name not in WHOLE_TENANT]


def _name() -> forms.CharField:
    problem = format_lazy(gettext_lazy("Enter a name of at most {most} characters."), most=MAX_NAME_LENGTH)
    return forms.CharField(
        label=_("Name"),
        max_length=MAX_NAME_LENGTH,
        error_messages={"required": problem, "max_length": problem},
        widget=forms.TextInput({"placeholder": "laptop"}),
    )


class LinesField(forms.CharField):
    """Distinct entries, one per line or separated by commas."""

    def __init__(self, *, max_entries: int = 0, **options: Any) -> None:
        super().__init__(required=False, **options)
        self.max_entries = max_entries

    def clean(self, value: Any) -> list[str]:
        """Return the entries. Raises ValidationError for too many or too long ones."""
        text = super().clean(value).replace(",", "\n")
        entries = list(dict.fromkeys(each.strip() for each in text.splitlines() if each.strip()))
        if self.max_entries and len(entries) > self.max_entries:
            raise ValidationError(f"Enter at most {self.max_entries}; these are {len(entries)}.")
        if any(len(entry) > MAX_NAME_LENGTH for entry in entries):
            raise ValidationError(f"Enter names of at most {MAX_NAME_LENGTH} characters, one per line.")
        return entries


class NewKeyForm(PageForm):
    """Name, project, scopes and lifetime of a new key."""

    id_prefix = "key"

    name = _name()
    project = forms.CharField(label=_("Project"), required=False, widget=forms.Select)
    scopes = choice(_("Scopes"), SCOPE_CHOICES, required=False)
    expires = choice(_("Expires"), LIFETIMES, required=False)

    def __init__(
        self, data: Mapping[str, Any] | None = None, *, projects: Sequence[Project], whole_tenant: bool
    ) -> None:
        super().__init__(data, initial={"project": "default"})
        _offer(self.fields["scopes"], scope_choices(whole_tenant=whole_tenant))
        self.projects = {project.slug: project for project in projects}
        self.fields["project"].widget = forms.Select(choices=[(each.slug, each.slug) for each in projects])

    def clean_project(self) -> Project:
        """Return the project. Raises ValidationError for one that is archived or not of this tenant."""
        found = self.projects.get(self.cleaned_data["project"] or "default")
        if found is None:
            raise ValidationError(CHOOSE)
        return found

    def clean_scopes(self) -> Sequence[str]:
        """Return the scopes."""
        return SCOPE_SETS[self.cleaned_data["scopes"] or "inference"]

    def clean_expires(self) -> datetime | None:
        """Return when the key expires; None: never."""
        return _expiry(self.cleaned_data["expires"] or "never")


class ChangeKeyForm(PageForm):
    """What of a key can be changed."""

    id_prefix = "change"

    name = _name()
    scopes = choice(_("Scopes"), SCOPE_CHOICES)
    expires = choice(_("Expires"), LIFETIMES)
    models = LinesField(
        label=_("Allowed models, one per line; empty for all"),
        max_entries=MAX_MODELS,
        widget=forms.Textarea({"rows": 3}),
    )
    networks = LinesField(
        label=_("Allowed networks, one per line; empty for all"),
        widget=forms.Textarea({"rows": 3, "class": "mono", "placeholder": "192.0.2.0/24"}),
    )
    fields_of_errors = {"allowed_networks": "networks", "scope": "scopes"}

    def __init__(self, data: Mapping[str, Any] | None = None, *, key: ApiKey, whole_tenant: bool) -> None:
        known = next((name for name, scopes in SCOPE_SETS.items() if set(scopes) == set(key.scopes)), KEEP)
        super().__init__(
            data,
            initial={
                "name": key.name,
                "scopes": known,
                "models": "\n".join(key.allowed_models),
                "networks": "\n".join(key.allowed_networks),
                "expires": KEEP,
            },
        )
        kept = [(KEEP, ", ".join(key.scopes) or "none")] if known == KEEP else []
        until = f"{key.expires_at:%-d %b %Y %H:%M} UTC" if key.expires_at else "never"
        # what is kept is accepted even where it is not offered
        _offer(
            self.fields["scopes"],
            [*(kept or [(KEEP, gettext("unchanged"))]), *scope_choices(whole_tenant=whole_tenant)],
        )
        _offer(self.fields["expires"], [(KEEP, gettext("unchanged: %(until)s") % {"until": until}), *LIFETIMES])

    def changes(self) -> dict[str, Any]:
        """Return the fields to change, as ``keys.change`` takes them."""
        cleaned = self.cleaned_data
        changes: dict[str, Any] = {
            "name": cleaned["name"],
            "allowed_models": cleaned["models"],
            "allowed_networks": cleaned["networks"],
        }
        if cleaned["scopes"] != KEEP:
            changes["scopes"] = list(SCOPE_SETS[cleaned["scopes"]])
        if cleaned["expires"] != KEEP:
            changes["expires_at"] = _expiry(cleaned["expires"])
        return changes


class RotateKeyForm(PageForm):
    """When the old key of a rotation expires."""

    id_prefix = "rotate"

    overlap = choice(_("The old key expires"), OVERLAPS)
    fields_of_errors = {"overlap_seconds": "overlap"}

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial={"overlap": "86400"})

    def period(self) -> timedelta:
        """Return how long the old key still works."""
        return timedelta(seconds=int(self.cleaned_data["overlap"]))


def _offer(field: forms.Field, choices: Sequence[Choice]) -> None:
    assert isinstance(field, forms.ChoiceField)
    field.choices = choices


def _expiry(days: str) -> datetime | None:
    return None if days == "never" else timezone.now() + timedelta(days=int(days))

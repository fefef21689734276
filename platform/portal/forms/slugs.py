"""The fields of a form that creates something with a slug and a name."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_noop as _

_SLUG = _("Enter a slug: 1 to 63 characters a-z, 0-9 and -.")
_NAME = _("Enter a name of at most 200 characters.")


def slug_field(*, help_text: str, placeholder: str = "") -> forms.CharField:
    """Return the field of a slug, which addresses contain."""
    return forms.CharField(
        label=_("Slug"),
        help_text=help_text,
        max_length=63,
        error_messages={"required": _SLUG, "max_length": _SLUG},
        widget=_input(placeholder),
    )


def name_field(*, placeholder: str = "") -> forms.CharField:
    """Return the field of a name, which may be empty."""
    return forms.CharField(
        label=_("Name"),
        required=False,
        max_length=200,
        error_messages={"max_length": _NAME},
        widget=_input(placeholder),
    )


def _input(placeholder: str) -> forms.TextInput:
    return forms.TextInput({"placeholder": placeholder} if placeholder else {})

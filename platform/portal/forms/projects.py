"""The form that creates a project."""

from __future__ import annotations

from django import forms

from portal.forms.base import PageForm

_SLUG = "Enter a slug: 1 to 63 characters a-z, 0-9 and -."
_NAME = "Enter a name of at most 200 characters."


class NewProjectForm(PageForm):
    """Slug and name of a new project."""

    id_prefix = "project"

    slug = forms.CharField(
        label="Slug",
        help_text="a-z, 0-9 and -, not at either end",
        max_length=63,
        error_messages={"required": _SLUG, "max_length": _SLUG},
    )
    name = forms.CharField(label="Name", required=False, max_length=200, error_messages={"max_length": _NAME})
    fields_of_errors = {"project": "slug"}

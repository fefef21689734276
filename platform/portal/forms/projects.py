"""The form that creates a project."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm
from portal.forms.slugs import name_field, slug_field


class NewProjectForm(PageForm):
    """Slug and name of a new project."""

    id_prefix = "project"

    slug = slug_field(help_text=_("a-z, 0-9 and -, not at either end"))
    name = name_field()
    fields_of_errors = {"project": "slug"}

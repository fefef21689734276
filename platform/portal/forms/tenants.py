"""The form that creates a tenant."""

from __future__ import annotations

from portal.forms.base import PageForm
from portal.forms.slugs import name_field, slug_field


class NewTenantForm(PageForm):
    """Slug and name of a new tenant."""

    id_prefix = "tenant"

    slug = slug_field(help_text="In addresses: a-z, 0-9 and -", placeholder="acme")
    name = name_field(placeholder="Acme")
    fields_of_errors = {"tenant": "slug"}

"""The forms that create a tenant and set its regions."""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

from portal.forms.base import Names, PageForm
from portal.forms.slugs import name_field, slug_field


class NewTenantForm(PageForm):
    """Slug and name of a new tenant."""

    id_prefix = "tenant"

    slug = slug_field(help_text=_("In addresses: a-z, 0-9 and -"), placeholder="acme")
    name = name_field(placeholder=_("Acme"))
    fields_of_errors = {"tenant": "slug"}


class RegionsForm(PageForm):
    """The regions in which a tenant's requests may run."""

    id_prefix = "regions"

    allowed_regions = Names(
        label=_("Regions in which requests may run"),
        required=False,
        help_text=_("Names with commas between them. Empty: all regions."),
    )
    fields_of_errors = {"region": "allowed_regions"}

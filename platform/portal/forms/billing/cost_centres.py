"""The form that sets a tenant's cost centre."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm
from tenants import cost_centres


class CostCentreForm(PageForm):
    """The cost centre of a tenant."""

    id_prefix = "cost-centre"

    cost_centre = forms.CharField(
        label=_("Cost centre"),
        required=False,
        max_length=cost_centres.LONGEST,
        help_text=_("As in your books. Empty: none."),
        error_messages={"max_length": f"Enter {cost_centres.ALLOWED}."},
    )

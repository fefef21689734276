"""The form of an issuer's account at Stripe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_noop as _

from billing.models import StripeConnection
from billing.stripe.connections import Wanted
from portal.forms.base import PageForm


def _secret(label: str, help_text: str) -> forms.CharField:
    """Return a field whose value is never sent back to the browser."""
    widget = forms.PasswordInput({"autocomplete": "off"})
    return forms.CharField(label=label, required=False, max_length=250, widget=widget, help_text=help_text)


class StripeForm(PageForm):
    """The secret key, the webhook endpoint's signing secret, and the tax rate."""

    id_prefix = "stripe"

    key = _secret(_("Secret key"), _("sk_… or rk_…; empty: the present one stays."))
    webhook_secret = _secret(_("Signing secret"), _("whsec_…; the earlier one stays valid for a day."))
    tax_rate = forms.CharField(
        label=_("Tax rate at Stripe"),
        required=False,
        max_length=200,
        help_text=_("txr_…; empty: tax is a line of its own."),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, connection: StripeConnection | None) -> None:
        super().__init__(data, initial={"tax_rate": connection.tax_rate_id if connection else ""})

    def wanted(self) -> Wanted:
        """Return what was typed."""
        typed = self.cleaned_data
        return Wanted(
            key=typed["key"].strip() or None,
            webhook_secret=typed["webhook_secret"].strip() or None,
            tax_rate=typed["tax_rate"].strip(),
        )

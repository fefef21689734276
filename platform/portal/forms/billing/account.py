"""The form of a tenant's billing account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from billing.accounts.account import DETAILS, POSTPAID, PREPAID, Account
from billing.models import BillingAccount
from billing.models.accounts import LONGEST, LONGEST_TERMS_DAYS
from portal.forms.base import Names, PageForm, choice, whole_number
from portal.forms.billing.countries import country

_PERCENT = re.compile(r"[0-9]{1,3}([.,][0-9]{1,2})?")


def _text(name: str, label: str, help_text: str = "") -> forms.CharField:
    return forms.CharField(label=label, required=False, max_length=LONGEST[name], help_text=help_text)


class AccountForm(PageForm):
    """All details and the currency."""

    id_prefix = "account"

    legal_name = _text("legal_name", _("Legal name"))
    address_lines = forms.CharField(
        label=_("Address"), required=False, widget=forms.Textarea({"rows": 2}), help_text=_("Street and the like.")
    )
    postcode = _text("postcode", _("Postcode"))
    city = _text("city", _("City"))
    country = country()
    tax_id = _text("tax_id", _("Tax id"), _("Such as a VAT number."))
    tax_rate = forms.CharField(
        label=_("Tax rate, in percent"), required=False, widget=forms.TextInput({"inputmode": "decimal"})
    )
    tax_note = _text("tax_note", _("Note on tax"), _("Why the rate is what it is; printed on invoices."))
    payment_terms_days = whole_number(_("Payment within, in days"), LONGEST_TERMS_DAYS, required=True)
    billing_emails = Names(label=_("E-mails for invoices"), required=False, help_text=_("With commas between them."))
    issuer = choice(_("Invoices are written by"), BillingAccount.Issuer.choices)
    charge_automatically = forms.BooleanField(
        label=_("Stripe charges invoices automatically"),
        required=False,
        help_text=_("To the payment method that the tenant saved at Stripe; without one it pays on Stripe's page."),
    )
    mode = choice(
        _("Pays"),
        ((POSTPAID, "afterwards"), (PREPAID, _("in advance"))),
        help_text=_("In advance: requests may only spend what the credit covers."),
    )
    currency = forms.CharField(
        label=_("Currency"), max_length=3, help_text=_("Three letters. Fixed once something is charged.")
    )
    fields_of_errors = {"tax_rate_basis_points": "tax_rate"}

    def __init__(self, data: Mapping[str, Any] | None = None, *, account: Account) -> None:
        details = {name: getattr(account.details, name) for name in DETAILS if name in self.base_fields}
        initial = details | {
            "address_lines": "\n".join(account.details.address_lines),
            "tax_rate": f"{Decimal(account.details.tax_rate_basis_points) / 100:.2f}",
            "currency": account.currency,
            "mode": account.mode,
        }
        super().__init__(data, initial=initial)
        if account.currency_is_fixed:
            self.fields["currency"].widget.attrs["readonly"] = True

    def clean_tax_rate(self) -> int:
        """Return the rate in basis points. Raises ValidationError."""
        text = self.cleaned_data["tax_rate"].strip() or "0"
        if not _PERCENT.fullmatch(text) or Decimal(text.replace(",", ".")) > 100:
            raise ValidationError(_("Enter a rate from 0 to 100 with at most two decimals, such as 19."))
        return int(Decimal(text.replace(",", ".")) * 100)

    def changes(self) -> dict[str, Any]:
        """Return what was typed, as ``account.change`` takes it."""
        found = dict(self.cleaned_data)
        found["tax_rate_basis_points"] = found.pop("tax_rate")
        found["address_lines"] = tuple(found["address_lines"].splitlines())
        return found

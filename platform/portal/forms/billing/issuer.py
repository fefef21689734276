"""The form of an issuer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from billing.errors import BadIssuer
from billing.models import Issuer
from portal.forms.base import PageForm
from portal.forms.billing.countries import country

_PERCENT = re.compile(r"[0-9]{1,3}([.,][0-9]{1,2})?")


def _text(label: str, longest: int, *, required: bool = False, help_text: str = "") -> forms.CharField:
    return forms.CharField(label=label, required=required, max_length=longest, help_text=help_text)


class IssuerForm(PageForm):
    """What the next invoice says of its issuer."""

    id_prefix = "issuer"

    name = forms.SlugField(label=_("Name here"), max_length=63, help_text=_("Not on invoices. a-z, 0-9 and -."))
    legal_name = _text(_("Legal name"), 200, required=True)
    address_lines = forms.CharField(
        label=_("Address"), required=False, widget=forms.Textarea({"rows": 2}), help_text=_("Street and the like.")
    )
    postcode = _text(_("Postcode"), 20)
    city = _text(_("City"), 100, required=True)
    country = country(required=True)
    tax_id = _text(_("Tax id"), 50, help_text=_("Such as a VAT number."))
    registration = _text(_("Registration"), 200, help_text=_("Such as HRB 12345 B."))
    email = _text("E-mail", 254, help_text=_("For questions about invoices."))
    iban = _text("IBAN", 42)
    bic = _text("BIC", 11)
    bank_name = _text(_("Bank"), 100)
    tax_rate = forms.CharField(
        label=_("Tax rate, in percent"), required=False, widget=forms.TextInput({"inputmode": "decimal"})
    )
    tax_note = _text(_("Note on tax"), 500, help_text=_("On each invoice, such as why there is no tax."))
    timezone = _text(_("Time zone"), 63, required=True, help_text=_("Of the dates on invoices."))
    invoice_prefix = _text(_("Invoice numbers begin with"), 20, required=True)
    credit_note_prefix = _text(_("Credit notes' numbers begin with"), 20, required=True)

    def __init__(self, data: Mapping[str, Any] | None = None, *, issuer: Issuer | None) -> None:
        of = issuer or Issuer()
        initial = {name: getattr(of, name) for name in self.base_fields if hasattr(of, name)}
        initial |= {"address_lines": "\n".join(of.address_lines), "tax_rate": f"{Decimal(of.tax_rate_bp) / 100:.2f}"}
        super().__init__(data, initial=initial)
        if issuer is not None:
            self.fields["name"].widget.attrs["readonly"] = True

    def clean_tax_rate(self) -> int:
        """Return the rate in basis points. Raises ValidationError."""
        text = self.cleaned_data["tax_rate"].strip() or "0"
        if not _PERCENT.fullmatch(text) or Decimal(text.replace(",", ".")) > 100:
            raise ValidationError(_("Enter a rate from 0 to 100 with at most two decimals, such as 19."))
        return int(Decimal(text.replace(",", ".")) * 100)

    def values(self) -> dict[str, Any]:
        """Return what was typed, as ``issuers.set_issuer`` takes it."""
        found = dict(self.cleaned_data)
        del found["name"]
        found["tax_rate_bp"] = found.pop("tax_rate")
        found["address_lines"] = found["address_lines"].splitlines()
        return found

    def refuse_value(self, error: BadIssuer) -> None:
        """Add an error next to its field."""
        field = {"tax_rate_bp": "tax_rate"}.get(error.field, error.field)
        self.add_error(field if field in self.fields else None, f"{error.problem[:1].upper()}{error.problem[1:]}.")

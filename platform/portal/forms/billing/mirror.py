"""The form of an invoice that another system issued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_noop as _

from billing.errors import InvoiceRefused
from billing.invoices.mirroring import External
from billing.pricing import amounts
from portal.forms.base import PageForm


def _amount(label: str, *, required: bool) -> forms.CharField:
    return forms.CharField(
        label=label, required=required, max_length=19, widget=forms.TextInput({"inputmode": "decimal"})
    )


class MirrorForm(PageForm):
    """What the other system says of its invoice of the month that the page shows."""

    id_prefix = "mirror"

    tenant = forms.SlugField(label=_("Tenant"), max_length=63, help_text=_("Its account names the other system."))
    number = forms.CharField(label=_("Number there"), max_length=64)
    external_id = forms.CharField(label=_("Id there"), max_length=64)
    total = _amount(_("Total with tax"), required=True)
    tax = _amount(_("Tax of it"), required=False)
    issued_on = forms.DateField(label=_("Date"), widget=forms.DateInput({"type": "date"}))
    due_on = forms.DateField(label=_("Due"), widget=forms.DateInput({"type": "date"}))

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data)

    def external(self, currency: str) -> External:
        """Return what a valid form says, in a currency. Raises InvoiceRefused for what is no amount of it."""
        values = self.cleaned_data
        total, tax = (_minor(values["number"], values[name] or "0", currency) for name in ("total", "tax"))
        return External(
            external_id=values["external_id"],
            number=values["number"],
            tax_cents=tax,
            total_cents=total,
            issued_on=values["issued_on"],
            due_on=values["due_on"],
        )


def _minor(number: str, text: str, currency: str) -> int:
    try:
        return amounts.to_minor(text.replace(",", "."), currency)
    except ValueError:
        remedy = f"Use one such as {amounts.example(currency)}."
        raise InvoiceRefused(number, f"{text!r} is no amount in {currency}", remedy) from None

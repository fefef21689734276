"""The forms of an invoice's page: record a payment, take one back, credit a part, and void."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from billing.invoices import registry, steps
from billing.invoices.steps import LONGEST_REASON, LONGEST_REFERENCE
from billing.models import Invoice
from billing.pricing import amounts
from portal.forms.base import PageForm

_AMOUNT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,4})?")
#: Longest text of a line of a credit note.
LONGEST_LINE = 300


class InvoiceForm(PageForm):
    """A change of one invoice."""

    def __init__(self, data: Mapping[str, Any] | None = None, *, invoice: Invoice, **options: Any) -> None:
        super().__init__(data, **options)
        self.invoice = invoice

    def clean_amount(self) -> int | None:
        """Return the amount in the currency's minor units; None for an empty field. Raises ValidationError."""
        text, currency = self.cleaned_data["amount"].strip().replace(",", "."), self.invoice.currency
        if not text:
            return None
        try:
            return amounts.to_minor(text if _AMOUNT.fullmatch(text) else "", currency)
        except ValueError:
            example = amounts.example(currency)
            raise ValidationError(f"This is no amount in {currency}. Use one such as {example}.") from None


def _reason(help_text: str = "") -> forms.CharField:
    return forms.CharField(label=_("Reason"), max_length=LONGEST_REASON, help_text=help_text)


class PayForm(InvoiceForm):
    """Money that arrived."""

    id_prefix = "pay"

    reference = forms.CharField(
        label=_("Reference"), max_length=LONGEST_REFERENCE, help_text=_("As the bank statement has it.")
    )
    paid_on = forms.DateField(label=_("Date of the payment"), widget=forms.DateInput({"type": "date"}))
    amount = forms.CharField(
        label=_("Amount"),
        required=False,
        max_length=24,
        widget=forms.TextInput({"inputmode": "decimal"}),
        help_text=_("Empty: all that is open."),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, invoice: Invoice) -> None:
        super().__init__(data, invoice=invoice, initial={"paid_on": steps.today(invoice)})

    def clean(self) -> dict[str, Any]:
        """Return the values. Adds an error for more than is open, unless the same payment was recorded before."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        amount, open_cents = values.get("amount"), registry.open_cents(self.invoice)
        is_new = not self.invoice.payments.filter(reference=values.get("reference", "")).exists()
        if is_new and amount is not None and not 0 < amount <= open_cents:
            is_open = f"{amounts.of_minor(open_cents, self.invoice.currency)} {self.invoice.currency}"
            self.add_error("amount", f"{is_open} are open. Record at most that; what is more becomes credit.")
        return values


class CreditPartForm(InvoiceForm):
    """A credit note for a part, or for all that is left."""

    id_prefix = "credit-part"

    amount = forms.CharField(
        label=_("Amount without tax"),
        required=False,
        max_length=24,
        widget=forms.TextInput({"inputmode": "decimal"}),
        help_text=_("Empty: all that is left."),
    )
    text = forms.CharField(
        label=_("Text of the line"), required=False, max_length=LONGEST_LINE, help_text=_("Not without an amount.")
    )
    reason = _reason(_("It is on the credit note."))


class VoidForm(InvoiceForm):
    """Taking all of an invoice back."""

    id_prefix = "void"

    reason = _reason(_("It is on the credit note."))


class UnpayForm(InvoiceForm):
    """Taking a payment back. The page has one for each payment, in its row of the table."""

    id_prefix = "unpay"

    reference = forms.CharField(max_length=LONGEST_REFERENCE)
    reason = _reason()

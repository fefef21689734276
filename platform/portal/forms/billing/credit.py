"""The form that changes a tenant's credit."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_noop as _

from billing.accounts.credits import NewCredit
from billing.errors import InvoiceRefused
from billing.invoices import registry
from billing.models import CreditRequest
from billing.models.credits import LONGEST_KEY, LONGEST_REASON, LONGEST_REFERENCE
from portal.formats import money
from portal.forms.base import PageForm, choice
from tenants.errors import NotFound
from tenants.models import Tenant

_AMOUNT = re.compile(r"-?[0-9]{1,8}(\.[0-9]{1,12})?")
Kind = CreditRequest.Kind
_KINDS = (
    (Kind.TOP_UP.value, _("paid in advance")),
    (Kind.PROMOTION.value, "promotion"),
    (Kind.REFUND.value, _("refund, paid back")),
    (Kind.CORRECTION.value, "correction"),
    (Kind.RETURN.value, _("return of an invoice's payment")),
)


class CreditForm(PageForm):
    """A change of a tenant's credit. Sent twice, it is made once: the page gives it a key."""

    id_prefix = "credit"

    kind = choice(_("Kind"), _KINDS)
    amount = forms.CharField(
        label=_("Amount"),
        max_length=24,
        error_messages={"required": _("Enter an amount such as 25 or 0.50.")},
        widget=forms.TextInput({"inputmode": "decimal", "placeholder": "25.00"}),
        help_text=_("A correction may be negative: then it takes credit."),
    )
    expires = forms.DateField(
        label=_("Last day, UTC"),
        required=False,
        widget=forms.DateInput({"type": "date"}),
        help_text=_("Of a promotion, which needs it."),
    )
    invoice = forms.CharField(
        label=_("Invoice"),
        required=False,
        max_length=64,
        help_text=_("Of a return: number of the invoice, whose tax goes back by its share."),
    )
    reference = forms.CharField(
        label=_("Reference"),
        required=False,
        max_length=LONGEST_REFERENCE,
        help_text=_("Such as the number of a payment."),
    )
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=LONGEST_REASON,
        help_text=_("A refund, a correction and a return need it. The tenant reads it. Do not name people."),
    )
    key = forms.CharField(max_length=LONGEST_KEY, widget=forms.HiddenInput)
    fields_of_errors = {"amount_pico": "amount", "expires_at": "expires"}

    def __init__(self, data: Mapping[str, Any] | None = None, *, tenant: Tenant) -> None:
        super().__init__(data, initial={"key": str(uuid.uuid4())})
        self.tenant = tenant
        self.fields["amount"].label = f"Amount, {tenant.currency}"

    def clean_amount(self) -> int:
        """Return the amount in pico-units. Raises ValidationError."""
        text = self.cleaned_data["amount"].strip()
        if not _AMOUNT.fullmatch(text):
            raise ValidationError(_("Enter an amount such as 25 or 0.50, with at most twelve decimals."))
        return int(Decimal(text) * money.PICO)

    def clean_invoice(self) -> UUID | None:
        """Return the id of one of the tenant's invoices. Raises ValidationError."""
        text = self.cleaned_data["invoice"].strip()
        try:
            return registry.find(text, self.tenant.id).id if text else None
        except NotFound:
            raise ValidationError(_("The tenant has no invoice with this number.")) from None
        except InvoiceRefused as error:
            raise ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        """Check what a kind needs and what it has not, in the words of the form."""
        found = super().clean() or self.cleaned_data
        kind = found.get("kind")
        if not kind:
            return found
        if kind != Kind.RETURN and self.data.get("invoice", "").strip():
            problem = _(
                "Only a “return of an invoice's payment” names an invoice. Choose that kind, or leave this empty."
            )
            self.add_error("invoice", problem)
        if kind != Kind.PROMOTION and found.get("expires"):
            self.add_error("expires", _("Only a promotion has a last day. Leave this empty."))
        if kind == Kind.PROMOTION and not self.data.get("expires", "").strip():
            self.add_error("expires", _("A promotion needs its last day."))
        if kind in {Kind.REFUND, Kind.CORRECTION, Kind.RETURN} and not found.get("reason", "").strip():
            self.add_error("reason", _("Say why: this kind needs a reason."))
        return found

    def wanted(self) -> NewCredit:
        """Return the change. A promotion expires at the end of its last day."""
        found, expires = self.cleaned_data, self.cleaned_data["expires"]
        behind = None if expires is None else datetime.combine(expires, time(), tzinfo=UTC) + timedelta(days=1)
        return NewCredit(
            kind=found["kind"],
            amount_pico=found["amount"],
            reason=found["reason"],
            reference=found["reference"],
            expires_at=behind,
            invoice=found["invoice"],
        )

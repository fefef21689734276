"""How tenants are billed."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from tenants.ids import new_id

#: The most characters of each text.
LONGEST = {"legal_name": 200, "city": 100, "postcode": 20, "country": 2, "tax_id": 40, "tax_note": 200}
MOST_ADDRESS_LINES = 4
LONGEST_ADDRESS_LINE = 100
MOST_EMAILS = 10
WHOLE_BASIS_POINTS = 10_000
LONGEST_TERMS_DAYS = 365


class BillingAccount(models.Model):
    """To whom a tenant's invoices are addressed, and by which terms. A tenant without one has the defaults.

    The currency is the tenant's own; a trigger keeps it once the tenant has a ledger account.
    """

    class Issuer(models.TextChoices):
        HEARTH = "hearth"
        STRIPE = "stripe"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField(unique=True)
    #: Who writes its invoices.
    issuer = models.CharField(max_length=8, choices=Issuer.choices, default=Issuer.HEARTH)
    legal_name = models.CharField(max_length=LONGEST["legal_name"], blank=True, default="")
    address_lines = ArrayField(
        models.CharField(max_length=LONGEST_ADDRESS_LINE), size=MOST_ADDRESS_LINES, default=list, blank=True
    )
    city = models.CharField(max_length=LONGEST["city"], blank=True, default="")
    postcode = models.CharField(max_length=LONGEST["postcode"], blank=True, default="")
    #: ISO 3166-1 alpha-2; empty: unknown.
    country = models.CharField(max_length=LONGEST["country"], blank=True, default="")
    tax_id = models.CharField(max_length=LONGEST["tax_id"], blank=True, default="")
    #: Hundredths of a percent.
    tax_rate_basis_points = models.PositiveSmallIntegerField(default=0)
    #: Why the rate is what it is, as invoices say it.
    tax_note = models.CharField(max_length=LONGEST["tax_note"], blank=True, default="")
    payment_terms_days = models.PositiveSmallIntegerField(default=30)
    #: Whether Stripe charges the saved payment method with each of its invoices.
    charge_automatically = models.BooleanField(default=False, db_default=False)
    billing_emails = ArrayField(models.CharField(max_length=254), size=MOST_EMAILS, default=list, blank=True)
    #: Those of ``billing_emails``, in lower case, that get more than a link to confirm them.
    confirmed_emails = ArrayField(
        models.CharField(max_length=254), size=MOST_EMAILS, default=list, db_default=[], blank=True
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="account_tax_rate_in_range", condition=Q(tax_rate_basis_points__range=(0, WHOLE_BASIS_POINTS))
            ),
            models.CheckConstraint(
                name="account_terms_in_range", condition=Q(payment_terms_days__range=(0, LONGEST_TERMS_DAYS))
            ),
        )

    def __str__(self) -> str:
        return self.legal_name or str(self.tenant_id)

"""Tenants' payment methods at Stripe, and whether invoices are charged to them."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: columns that are nullable or have a default of the database."""

    dependencies: ClassVar = [("billing", "0044_tax_of_returns")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "billingaccount", "charge_automatically", models.BooleanField(db_default=False, default=False)
        ),
        migrations.AddField(
            "stripecustomer",
            "payment_method_id",
            models.CharField(blank=True, db_default="", default="", max_length=200),
        ),
        migrations.AddField(
            "stripecustomer",
            "payment_method",
            models.CharField(blank=True, db_default="", default="", max_length=100),
        ),
        migrations.AddField("stripecustomer", "payment_method_at", models.DateTimeField(null=True)),
    ]

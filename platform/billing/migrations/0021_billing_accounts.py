"""Billing accounts: to whom invoices are addressed, and by which terms.

A tenant's currency, which is that of its account, stays once the tenant has an account in the ledger.
"""

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

ACCOUNT = "billing_billingaccount"
KEEP_CURRENCY = """
    CREATE FUNCTION hearth_keep_currency() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM billing_ledgeraccount WHERE tenant_id = OLD.id) THEN
            RAISE EXCEPTION 'the currency of % is fixed: the ledger has accounts in it', OLD.slug
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER keep_currency BEFORE UPDATE OF currency ON tenants_tenant FOR EACH ROW
        WHEN (OLD.currency IS DISTINCT FROM NEW.currency) EXECUTE FUNCTION hearth_keep_currency();
"""
FREE_CURRENCY = "DROP TRIGGER keep_currency ON tenants_tenant; DROP FUNCTION hearth_keep_currency()"


class Migration(migrations.Migration):
    """Expand: a new table and a trigger."""

    dependencies: ClassVar = [("billing", "0020_plans"), ("tenants", "0001_initial")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="BillingAccount",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField(unique=True)),
                (
                    "issuer",
                    models.CharField(
                        choices=[("hearth", "Hearth"), ("stripe", "Stripe")], default="hearth", max_length=8
                    ),
                ),
                ("legal_name", models.CharField(blank=True, default="", max_length=200)),
                (
                    "address_lines",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=100), blank=True, default=list, size=4
                    ),
                ),
                ("city", models.CharField(blank=True, default="", max_length=100)),
                ("postcode", models.CharField(blank=True, default="", max_length=20)),
                ("country", models.CharField(blank=True, default="", max_length=2)),
                ("tax_id", models.CharField(blank=True, default="", max_length=40)),
                ("tax_rate_basis_points", models.PositiveSmallIntegerField(default=0)),
                ("tax_note", models.CharField(blank=True, default="", max_length=200)),
                ("payment_terms_days", models.PositiveSmallIntegerField(default=30)),
                (
                    "billing_emails",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=254), blank=True, default=list, size=10
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(tax_rate_basis_points__range=(0, 10_000)), name="account_tax_rate_in_range"
                    ),
                    models.CheckConstraint(
                        condition=Q(payment_terms_days__range=(0, 365)), name="account_terms_in_range"
                    ),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(ACCOUNT), disable_sql(ACCOUNT)),
        migrations.RunSQL(KEEP_CURRENCY, FREE_CURRENCY),
    ]

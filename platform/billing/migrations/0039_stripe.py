"""Accounts at Stripe, what is known of their invoices and events, and one legal document for a tenant's month."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

OF_TENANTS = ("billing_stripecustomer", "billing_stripeinvoice")
#: An invoice of Hearth's and one of Stripe's for the same month exclude each other; both sides wait for each other.
ONE_DOCUMENT = """
    CREATE FUNCTION hearth_one_legal_document() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtextextended('legal document ' || NEW.tenant_id, 0));
        -- One statement for both tables: PL/pgSQL would look for the channel of a row that has none.
        IF (CASE TG_TABLE_NAME WHEN 'billing_stripeinvoice' THEN EXISTS (
            SELECT FROM billing_invoice
            WHERE tenant_id = NEW.tenant_id AND year = NEW.year AND month = NEW.month
            AND channel = 'hearth' AND state <> 'void'
        ) ELSE to_jsonb(NEW) ->> 'channel' = 'hearth' AND EXISTS (
            SELECT FROM billing_stripeinvoice
            WHERE tenant_id = NEW.tenant_id AND year = NEW.year AND month = NEW.month AND ended_at IS NULL
        ) END) THEN
            RAISE EXCEPTION 'one legal document per month: % of % has one', NEW.year || '-' || NEW.month, NEW.tenant_id
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$;
"""
NO_DOCUMENT = "DROP FUNCTION hearth_one_legal_document()"
TRIGGER = """
    CREATE TRIGGER one_legal_document BEFORE INSERT ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_one_legal_document();
"""


class Migration(migrations.Migration):
    """Expand: new tables, and a trigger that refuses nothing that the release before does."""

    dependencies: ClassVar = [
        ("billing", "0038_request_search"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="StripeConnection",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("account_id", models.CharField(max_length=200)),
                ("is_live", models.BooleanField()),
                ("sealed_key", models.BinaryField()),
                ("pepper_version", models.PositiveIntegerField()),
                ("key_hint", models.CharField(max_length=8)),
                ("tax_rate_id", models.CharField(blank=True, default="", max_length=200)),
                ("connected_by", models.CharField(max_length=200)),
                (
                    "connected_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("event_at", models.DateTimeField(null=True)),
                (
                    "issuer",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="stripe", to="billing.issuer"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeComparison",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("reading", models.CharField(default="invoices", max_length=20)),
                ("cursor", models.CharField(blank=True, default="", max_length=200)),
                ("invoices", models.PositiveIntegerField(default=0)),
                ("payments", models.PositiveIntegerField(default=0)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(null=True)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="comparisons",
                        to="billing.stripeconnection",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeInvoice",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("year", models.PositiveSmallIntegerField()),
                ("month", models.PositiveSmallIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("lines", models.JSONField()),
                ("heading", models.JSONField()),
                ("net_cents", models.BigIntegerField()),
                ("tax_cents", models.BigIntegerField()),
                ("applied_cents", models.BigIntegerField()),
                ("terms_days", models.PositiveSmallIntegerField()),
                ("key_generation", models.PositiveIntegerField(default=0)),
                ("external_id", models.CharField(blank=True, default="", max_length=200)),
                ("status", models.CharField(blank=True, default="", max_length=20)),
                ("number", models.CharField(blank=True, default="", max_length=64)),
                ("hosted_url", models.CharField(blank=True, default="", max_length=1000)),
                ("pdf_url", models.CharField(blank=True, default="", max_length=1000)),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
                ("is_refused", models.BooleanField(default=False)),
                ("requested_by", models.CharField(max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("tried_at", models.DateTimeField(null=True)),
                ("sent_at", models.DateTimeField(null=True)),
                ("read_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "closing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="stripe_invoices",
                        to="billing.billingmonth",
                    ),
                ),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invoices",
                        to="billing.stripeconnection",
                    ),
                ),
                (
                    "mirror",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="stripe",
                        to="billing.invoice",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeFinding",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("missing", "Missing"),
                            ("extra", "Extra"),
                            ("amount", "Amount"),
                            ("state", "State"),
                            ("payment", "Payment"),
                        ],
                        max_length=16,
                    ),
                ),
                ("external_id", models.CharField(blank=True, default="", max_length=200)),
                ("ours", models.CharField(blank=True, default="", max_length=200)),
                ("theirs", models.CharField(blank=True, default="", max_length=200)),
                ("text", models.CharField(max_length=500)),
                (
                    "comparison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="findings",
                        to="billing.stripecomparison",
                    ),
                ),
                (
                    "invoice",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="findings",
                        to="billing.stripeinvoice",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeWebhookSecret",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("sealed", models.BinaryField()),
                ("pepper_version", models.PositiveIntegerField()),
                ("hint", models.CharField(max_length=8)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("expires_at", models.DateTimeField(null=True)),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="webhook_secrets",
                        to="billing.stripeconnection",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StripeCustomer",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("external_id", models.CharField(blank=True, default="", max_length=200)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="customers",
                        to="billing.stripeconnection",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "connection"), name="stripe_customer_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("external_id", ""), _negated=True),
                        fields=("connection", "external_id"),
                        name="stripe_customer_of_one_tenant",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StripeEvent",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("event_id", models.CharField(max_length=200)),
                ("type", models.CharField(max_length=100)),
                ("object_id", models.CharField(blank=True, default="", max_length=200)),
                ("invoice_id", models.CharField(blank=True, default="", max_length=200)),
                ("amount", models.BigIntegerField(null=True)),
                ("currency", models.CharField(blank=True, default="", max_length=3)),
                ("attempt", models.PositiveIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                (
                    "received_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("tries", models.PositiveSmallIntegerField(default=0)),
                ("next_try_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("processed_at", models.DateTimeField(null=True)),
                ("outcome", models.CharField(blank=True, default="", max_length=500)),
                (
                    "connection",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="billing.stripeconnection",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("processed_at", None)),
                        fields=["next_try_at"],
                        name="stripe_events_to_process",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("connection", "event_id"), name="stripe_event_once")],
            },
        ),
        migrations.AddConstraint(
            model_name="stripeinvoice",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)),
                fields=("tenant_id", "year", "month"),
                name="one_stripe_invoice_per_month",
            ),
        ),
        migrations.AddConstraint(
            model_name="stripeinvoice",
            constraint=models.UniqueConstraint(
                condition=models.Q(("external_id", ""), _negated=True),
                fields=("connection", "external_id"),
                name="stripe_invoice_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="stripefinding",
            constraint=models.UniqueConstraint(
                fields=("comparison", "kind", "external_id", "invoice"),
                name="stripe_finding_once",
                nulls_distinct=False,
            ),
        ),
        *[migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in OF_TENANTS],
        migrations.RunSQL(ONE_DOCUMENT, NO_DOCUMENT),
        *[
            migrations.RunSQL(TRIGGER.format(table=table), f"DROP TRIGGER one_legal_document ON {table}")
            for table in ("billing_invoice", "billing_stripeinvoice")
        ],
    ]

"""Invoices, credit notes, their documents and payments. What they say never changes; a state changes as it may."""

from importlib import import_module
from typing import Any, ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

_guards: Any = import_module("billing.migrations.0008_usage_only_grows")

INVOICE, ISSUER = "billing_invoice", "billing_issuer"
NUMBERS = """NEW.id = OLD.id AND NEW.name = OLD.name
    AND NEW.next_invoice >= OLD.next_invoice AND NEW.next_credit_note >= OLD.next_credit_note"""
KEPT = ("billing_creditnote", "billing_invoicedocument", "billing_invoiceline", "billing_invoicepayment")
#: What a step of an invoice sets.
STEP = ("state", "sent_at", "paid_at", "overdue_at", "voided_at", "voided_by", "void_reason")
_NAMES = ", ".join(f"'{name}'" for name in STEP)
#: As ``billing.invoices.states`` has it.
STEPS = f"""to_jsonb(NEW) - ARRAY[{_NAMES}] = to_jsonb(OLD) - ARRAY[{_NAMES}]
    AND (OLD.state <> 'void' AND NEW.state IN (OLD.state, 'void')
        OR (OLD.state, NEW.state) IN (('final', 'sent'), ('final', 'paid'), ('sent', 'paid')))"""
APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Expand: new tables."""

    dependencies: ClassVar = [
        ("billing", "0023_tags"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            model_name="ledgeraccount",
            name="kind",
            field=models.CharField(
                choices=[
                    ("receivable", "Receivable"),
                    ("revenue", "Revenue"),
                    ("rounding", "Rounding"),
                    ("tax", "Tax"),
                    ("cash", "Cash"),
                ],
                max_length=16,
            ),
        ),
        migrations.CreateModel(
            name="Issuer",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("name", models.SlugField(max_length=63, unique=True)),
                ("is_default", models.BooleanField(default=False)),
                ("legal_name", models.CharField(max_length=200)),
                (
                    "address_lines",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=200), default=list, size=None
                    ),
                ),
                ("postcode", models.CharField(blank=True, default="", max_length=20)),
                ("city", models.CharField(max_length=100)),
                ("country", models.CharField(max_length=2)),
                ("tax_id", models.CharField(blank=True, default="", max_length=50)),
                ("registration", models.CharField(blank=True, default="", max_length=200)),
                ("email", models.EmailField(blank=True, default="", max_length=254)),
                ("iban", models.CharField(blank=True, default="", max_length=34)),
                ("bic", models.CharField(blank=True, default="", max_length=11)),
                ("bank_name", models.CharField(blank=True, default="", max_length=100)),
                ("timezone", models.CharField(default="UTC", max_length=63)),
                ("invoice_prefix", models.CharField(default="INV-", max_length=20)),
                ("next_invoice", models.PositiveIntegerField(default=1)),
                ("credit_note_prefix", models.CharField(default="CN-", max_length=20)),
                ("next_credit_note", models.PositiveIntegerField(default=1)),
                ("tax_rate_bp", models.PositiveIntegerField(default=0)),
                ("tax_note", models.CharField(blank=True, default="", max_length=500)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("is_default", True)), fields=("is_default",), name="one_default_issuer"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("tax_rate_bp__lte", 10000)), name="issuer_tax_rate_within_bounds"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                (
                    "channel",
                    models.CharField(
                        choices=[("hearth", "Hearth"), ("stripe", "Stripe")], default="hearth", max_length=16
                    ),
                ),
                ("sequence", models.PositiveIntegerField(null=True)),
                ("number", models.CharField(max_length=64)),
                ("external_id", models.CharField(blank=True, default="", max_length=200)),
                ("year", models.PositiveSmallIntegerField()),
                ("month", models.PositiveSmallIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("exact_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("rounding_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("net_cents", models.BigIntegerField()),
                ("tax_cents", models.BigIntegerField()),
                ("total_cents", models.BigIntegerField()),
                ("applied_cents", models.BigIntegerField(default=0)),
                ("issued_on", models.DateField()),
                ("due_on", models.DateField()),
                ("document", models.JSONField()),
                (
                    "finalized_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("finalized_by", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[("final", "Final"), ("sent", "Sent"), ("paid", "Paid"), ("void", "Void")],
                        default="final",
                        max_length=16,
                    ),
                ),
                ("sent_at", models.DateTimeField(null=True)),
                ("paid_at", models.DateTimeField(null=True)),
                ("overdue_at", models.DateTimeField(null=True)),
                ("voided_at", models.DateTimeField(null=True)),
                ("voided_by", models.CharField(blank=True, default="", max_length=200)),
                ("void_reason", models.CharField(blank=True, default="", max_length=500)),
                (
                    "closing",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="invoices", to="billing.billingmonth"
                    ),
                ),
                (
                    "replaces",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="replaced_by",
                        to="billing.invoice",
                    ),
                ),
                (
                    "issuer",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invoices",
                        to="billing.issuer",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="CreditNote",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("sequence", models.PositiveIntegerField()),
                ("number", models.CharField(max_length=64)),
                ("issued_on", models.DateField()),
                ("document", models.JSONField()),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "invoice",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="credit_note", to="billing.invoice"
                    ),
                ),
                (
                    "issuer",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="credit_notes", to="billing.issuer"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="InvoiceDocument",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                (
                    "kind",
                    models.CharField(
                        choices=[("pdf", "Pdf"), ("html", "Html"), ("xml", "Xml"), ("csv", "Csv"), ("json", "Json")],
                        max_length=8,
                    ),
                ),
                ("content", models.BinaryField()),
                ("size_bytes", models.PositiveIntegerField()),
                ("sha256", models.CharField(max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "credit_note",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="documents",
                        to="billing.creditnote",
                    ),
                ),
                (
                    "invoice",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="documents",
                        to="billing.invoice",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("invoice", "kind"), name="invoice_document_once"),
                    models.UniqueConstraint(fields=("credit_note", "kind"), name="credit_note_document_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("credit_note__isnull", False), ("invoice", None)),
                            models.Q(("credit_note", None), ("invoice__isnull", False)),
                            _connector="OR",
                        ),
                        name="document_of_one",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="InvoiceLine",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("position", models.PositiveIntegerField()),
                ("description", models.CharField(max_length=600)),
                ("quantity", models.PositiveBigIntegerField(null=True)),
                ("unit", models.CharField(blank=True, default="", max_length=16)),
                ("unit_price_pico", models.PositiveBigIntegerField(null=True)),
                ("amount_pico", models.DecimalField(decimal_places=0, max_digits=38)),
                ("amount_cents", models.BigIntegerField()),
                (
                    "invoice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="lines", to="billing.invoice"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("invoice", "position"), name="invoice_line_once")],
            },
        ),
        migrations.CreateModel(
            name="InvoicePayment",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("amount_cents", models.PositiveBigIntegerField()),
                ("paid_on", models.DateField()),
                ("reference", models.CharField(max_length=200)),
                ("recorded_by", models.CharField(max_length=200)),
                (
                    "recorded_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "invoice",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="payments", to="billing.invoice"
                    ),
                ),
                (
                    "transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invoice_payment",
                        to="billing.ledgertransaction",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("invoice", "reference"), name="payment_reference_once"),
                    models.CheckConstraint(condition=models.Q(("amount_cents__gt", 0)), name="payment_of_something"),
                ],
            },
        ),
        migrations.AddIndex(
            model_name="invoice",
            index=models.Index(fields=["tenant_id", "-id"], name="invoices_by_tenant"),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "void"), _negated=True),
                fields=("tenant_id", "year", "month"),
                name="one_invoice_per_month",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(fields=("issuer", "sequence"), name="invoice_sequence_once"),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(fields=("issuer", "number"), name="invoice_number_once"),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.UniqueConstraint(
                condition=models.Q(("external_id", ""), _negated=True),
                fields=("channel", "external_id"),
                name="external_invoice_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("channel", "hearth"),
                        ("external_id", ""),
                        ("issuer__isnull", False),
                        ("sequence__isnull", False),
                    ),
                    models.Q(
                        models.Q(("channel", "hearth"), _negated=True),
                        ("issuer", None),
                        ("sequence", None),
                        models.Q(("external_id", ""), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="invoice_numbered_by_its_channel",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "total_cents",
                        django.db.models.expressions.CombinedExpression(
                            models.F("net_cents"), "+", models.F("tax_cents")
                        ),
                    )
                ),
                name="invoice_total_is_net_and_tax",
            ),
        ),
        migrations.AddConstraint(
            model_name="invoice",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(models.Q(("state", "void"), _negated=True), ("voided_at", None)),
                    models.Q(
                        ("state", "void"),
                        ("voided_at__isnull", False),
                        models.Q(("void_reason", ""), _negated=True),
                        models.Q(("voided_by", ""), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="invoice_void_with_reason",
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.UniqueConstraint(fields=("issuer", "sequence"), name="credit_note_sequence_once"),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.UniqueConstraint(fields=("issuer", "number"), name="credit_note_number_once"),
        ),
        *[migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in (INVOICE, *KEPT)],
        migrations.RunSQL(_guards.guard(ISSUER, NUMBERS, "numbers of issuers grow"), _guards.unguard(ISSUER)),
        migrations.RunSQL(_guards.guard(INVOICE, STEPS, "a step changes an invoice"), _guards.unguard(INVOICE)),
        *[migrations.RunSQL(APPEND_ONLY.format(table=table), f"DROP TRIGGER append_only ON {table}") for table in KEPT],
    ]

"""Credit notes for parts of invoices, and what asks for one."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: columns that are nullable or have a default of the database; an invoice may have several credit notes."""

    dependencies: ClassVar = [
        ("billing", "0046_confined_members"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            model_name="creditnote",
            name="is_partial",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="creditnote",
            name="net_cents",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="creditnote",
            name="request",
            field=models.OneToOneField(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="credit_note",
                to="billing.creditrequest",
            ),
        ),
        migrations.AddField(
            model_name="creditnote",
            name="settled_cents",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="creditnote",
            name="tax_cents",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="creditrequest",
            name="lines",
            field=models.JSONField(null=True),
        ),
        migrations.AlterField(
            model_name="creditnote",
            name="invoice",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="credit_notes", to="billing.invoice"
            ),
        ),
        migrations.AlterField(
            model_name="creditrequest",
            name="kind",
            field=models.CharField(
                choices=[
                    ("top_up", "Top Up"),
                    ("promotion", "Promotion"),
                    ("refund", "Refund"),
                    ("correction", "Correction"),
                    ("return", "Return"),
                    ("reversal", "Reversal"),
                    ("credit_note", "Credit Note"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_partial", False)),
                fields=("invoice",),
                name="credit_note_of_a_void_invoice_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="creditnote",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("is_partial", False),
                    models.Q(
                        ("net_cents__gt", 0),
                        ("request__isnull", False),
                        ("settled_cents__gte", 0),
                        ("tax_cents__gte", 0),
                        (
                            "settled_cents__lte",
                            models.F("net_cents") + models.F("tax_cents"),
                        ),
                    ),
                    _connector="OR",
                ),
                name="credit_note_of_a_part_has_amounts",
            ),
        ),
    ]

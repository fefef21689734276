"""The drain's position in each log, and the rights that a tenant needs to read its own statement."""

from typing import ClassVar

import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

#: Follows the row-level security of the named table.
PROTECTED = {
    "billing_priceversion": "EXISTS (SELECT FROM billing_pricebook AS book WHERE book.id = book_id)",
    "billing_ledgerentry": "EXISTS (SELECT FROM billing_ledgeraccount AS account WHERE account.id = account_id)",
}


class Migration(migrations.Migration):
    """A table, an index, and two tables that a tenant may read its own part of."""

    dependencies: ClassVar = [("billing", "0002_usage_and_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="WalOffset",
            fields=[
                ("writer_id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("node", models.CharField(max_length=253)),
                ("segment", models.PositiveIntegerField()),
                ("offset", models.PositiveBigIntegerField()),
                (
                    "updated_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="ledgertransaction",
            index=models.Index(fields=["tenant_id", "source"], name="ledger_by_tenant_and_source"),
        ),
        *[migrations.RunSQL(enable_sql(table, own), disable_sql(table)) for table, own in PROTECTED.items()],
    ]

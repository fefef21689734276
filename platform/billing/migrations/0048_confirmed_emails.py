"""Which e-mail addresses of billing accounts are confirmed. Those that exist are."""

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

CONFIRM = """
    UPDATE billing_billingaccount
    SET confirmed_emails = ARRAY(SELECT DISTINCT lower(each) FROM unnest(billing_emails) AS each)
    WHERE billing_emails <> '{}'
"""


class Migration(migrations.Migration):
    """One column. A process that does not know it sends to every address, as before."""

    dependencies: ClassVar = [("billing", "0047_parts_of_invoices_credited")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "billingaccount",
            "confirmed_emails",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=254), blank=True, db_default=[], default=list, size=10
            ),
        ),
        migrations.RunSQL(CONFIRM, migrations.RunSQL.noop),
    ]

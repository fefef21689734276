"""An index on the few postings of a tenant that are not usage, which its prepaid balance is made of."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q


class Migration(migrations.Migration):
    """One partial index."""

    dependencies: ClassVar = [("billing", "0027_token_classes")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddIndex(
            "ledgertransaction",
            models.Index(fields=["tenant_id"], condition=~Q(kind="usage"), name="ledger_but_usage"),
        ),
    ]

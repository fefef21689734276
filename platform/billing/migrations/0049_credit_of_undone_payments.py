"""What an undone payment took back from credit that it had become. Those that exist took nothing."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Expand: one column with a default of the database."""

    dependencies: ClassVar = [("billing", "0048_confirmed_emails")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "paymentundone",
            "credit_cents",
            models.BigIntegerField(db_default=0, default=0),
        ),
    ]

"""Say what each operator may change."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """One column. Operators of before are admins, as are those that a process makes that does not know it."""

    dependencies: ClassVar = [("tenants", "0019_payment_overdue")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "user",
            "operator_role",
            models.CharField(
                choices=[("viewer", "Viewer"), ("operator", "Operator"), ("finance", "Finance"), ("admin", "Admin")],
                db_default="admin",
                default="admin",
                max_length=16,
            ),
        ),
    ]

"""What a key is for: a program, or the portal's playground, of which a member has one in each project."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Q


class Migration(migrations.Migration):
    """One column with a default in the database. No row has the other value yet, so the index is empty."""

    dependencies: ClassVar = [("tenants", "0017_prepaid_tenants")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "apikey",
            "purpose",
            models.CharField(
                choices=[("api", "Api"), ("playground", "Playground")],
                db_default="api",
                default="api",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            "apikey",
            models.UniqueConstraint(
                condition=Q(("purpose", "playground")),
                fields=("project", "created_by"),
                name="playground_key_once_per_member",
            ),
        ),
    ]

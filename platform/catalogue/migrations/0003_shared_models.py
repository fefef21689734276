"""Let a private model be shared with chosen tenants, which then see it like its owner."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

BEFORE = "owner_id = current_setting('hearth.tenant_id')::uuid OR visibility = 'public'"
AFTER = f"{BEFORE} OR current_setting('hearth.tenant_id')::uuid = ANY(shared_with)"


class Migration(migrations.Migration):
    """Add the tenants that see a private model, also to the row-level security of the models table."""

    dependencies: ClassVar = [("catalogue", "0002_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "model",
            "shared_with",
            ArrayField(models.UUIDField(), blank=True, db_default=[], default=list, size=None),
        ),
        migrations.RunSQL(
            f"ALTER POLICY tenant_sees_own ON catalogue_model USING ({AFTER})",
            f"ALTER POLICY tenant_sees_own ON catalogue_model USING ({BEFORE})",
        ),
    ]

"""What must hold of bounds and revisions; measurements and decisions only grow."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

APPEND_ONLY = (
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {0} FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change()"
)
UNDO = "DROP TRIGGER append_only ON {0}"


class Migration(migrations.Migration):
    """Contract."""

    dependencies: ClassVar = [("workers", "0005_fill_replicas")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("min_replicas__lte", models.F("desired_replicas")),
                    ("desired_replicas__lte", models.F("max_replicas")),
                ),
                name="deployment_bounds",
            ),
        ),
        migrations.AlterField(
            model_name="replica",
            name="revision",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="replicas", to="catalogue.modelrevision"
            ),
        ),
        *(
            migrations.RunSQL(APPEND_ONLY.format(table), UNDO.format(table))
            for table in ("workers_starttime", "workers_scaledecision")
        ),
    ]

"""Say which cost centre of its owner's books a tenant, or a project, belongs to."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    """Two columns. A process that does not know them leaves them empty."""

    dependencies: ClassVar = [("tenants", "0015_scrape_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(name, "cost_centre", models.CharField(blank=True, db_default="", default="", max_length=64))
        for name in ("tenant", "project")
    ]

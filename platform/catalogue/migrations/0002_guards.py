"""Row-level security of the catalogue: a tenant sees its own models and the public ones."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

VISIBLE = "owner_id = current_setting('hearth.tenant_id')::uuid OR visibility = 'public'"


class Migration(migrations.Migration):
    """Protect the models table."""

    dependencies: ClassVar = [("catalogue", "0001_initial"), ("tenants", "0002_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(enable_sql("catalogue_model", VISIBLE), disable_sql("catalogue_model"))
    ]

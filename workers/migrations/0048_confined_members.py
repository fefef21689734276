"""Members who are confined to projects read no asynchronous request of another one."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import confine_sql, unconfine_sql

TABLE = "workers_deferredrequest"


class Migration(migrations.Migration):
    """Expand: the earlier release confines nobody, so it still reads every row under this policy."""

    dependencies: ClassVar = [("workers", "0047_node_roles")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(confine_sql(TABLE), unconfine_sql(TABLE))]

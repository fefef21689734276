"""Let a tenant read only its own limits and budgets."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

TABLES = ("tenants_limit", "tenants_budget")


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0003_limits_and_budgets")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(enable_sql(table), disable_sql(table)) for table in TABLES
    ]

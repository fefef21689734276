"""Members who are confined to projects read these only: projects, keys, their limits and settings, and changes."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import OWN_PROJECTS, confine_sql, unconfine_sql

#: Whether a key is one of these projects': keys have a policy of their own, which applies here too.
OF_OWN_KEY = "EXISTS (SELECT FROM tenants_apikey AS own WHERE own.id = key_id)"
OF_PROJECT_OR_KEY = f"project_id = ANY ({OWN_PROJECTS}) OR {OF_OWN_KEY}"
#: As keys of one project see it: changes of the project, its keys, and their limits, budgets and cache settings.
CHANGES = """
    EXISTS (SELECT FROM tenants_project AS own WHERE object_kind = 'project' AND object_id = own.id::text
        OR before ->> 'project' = own.slug OR after ->> 'project' = own.slug)
    OR EXISTS (SELECT FROM tenants_apikey AS own WHERE object_kind = 'key' AND object_id = own.id::text
        OR before ->> 'key' = own.public_id OR after ->> 'key' = own.public_id)
"""
CONFINED = {
    "tenants_project": f"id = ANY ({OWN_PROJECTS})",
    "tenants_apikey": f"project_id = ANY ({OWN_PROJECTS})",
    "tenants_limit": OF_PROJECT_OR_KEY,
    "tenants_budget": OF_PROJECT_OR_KEY,
    "tenants_cachesetting": OF_PROJECT_OR_KEY,
    "tenants_contententry": f"project_id = ANY ({OWN_PROJECTS})",
    "tenants_auditentry": CHANGES,
}


class Migration(migrations.Migration):
    """Expand: the earlier release confines nobody, so it still reads every row under these policies.

    Each statement commits by itself, so that no two tables are locked at once.
    """

    atomic = False
    dependencies: ClassVar = [("tenants", "0025_content_end_users")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(confine_sql(table, condition), unconfine_sql(table)) for table, condition in CONFINED.items()
    ]

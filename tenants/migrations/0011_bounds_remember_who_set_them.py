"""Record who set each limit and budget, and which keys created a key.

For earlier limits and budgets the audit log says who set them last; what it does not know was set by operators. Rows of
a process of an earlier release count as set by operators.
"""

from typing import ClassVar

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

SETTERS = (("operator", "Operator"), ("owner", "Owner"), ("key", "Key"))
FROM_AUDIT_LOG = """
    UPDATE {table} AS bound
    SET set_by = CASE
            WHEN entry.actor_kind = 'key' THEN 'key'
            WHEN entry.actor_kind = 'user' AND NOT coalesce(person.is_staff, true) THEN 'owner'
            ELSE 'operator'
        END,
        set_by_key = CASE WHEN entry.actor_kind = 'key' THEN left(entry.actor, 16) ELSE '' END
    FROM (
        SELECT DISTINCT ON (object_id) object_id, actor_kind, actor FROM tenants_auditentry
        WHERE object_kind = '{kind}' AND after IS NOT NULL ORDER BY object_id, id DESC
    ) AS entry LEFT JOIN tenants_user AS person ON person.username = entry.actor
    WHERE entry.object_id = bound.id::text
"""


class Migration(migrations.Migration):
    dependencies: ClassVar = [("tenants", "0010_policy_changes")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "apikey",
            "issuers",
            django.contrib.postgres.fields.ArrayField(models.UUIDField(), blank=True, db_default=[], default=list),
        ),
        *[
            operation
            for model in ("limit", "budget")
            for operation in (
                migrations.AddField(
                    model,
                    "set_by",
                    models.CharField(choices=SETTERS, db_default="operator", default="operator", max_length=8),
                ),
                migrations.AddField(
                    model,
                    "set_by_key",
                    models.CharField(blank=True, db_default="", default="", max_length=16),
                ),
            )
        ],
        *[
            migrations.RunSQL(FROM_AUDIT_LOG.format(table=f"tenants_{kind}", kind=kind), migrations.RunSQL.noop)
            for kind in ("limit", "budget")
        ],
    ]

"""Indexes that find single requests by key, end user, the client's id, and failure.

The partitions have millions of rows and are written all the time, so each gets its index without a lock that keeps
writers out (``CONCURRENTLY``), and then joins the index of the whole table, which is only a name. Partitions that are
made meanwhile, or later, get theirs when they are attached.
"""

from typing import ClassVar

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

TABLE = "billing_usagerecord"
#: The name of each index, and what it is on. Those with a condition cost nothing for the rows that are not in them.
INDEXES = {
    "usage_by_key": "(key_id, id DESC)",
    "usage_by_end_user": "(end_user, id DESC) WHERE end_user <> ''",
    "usage_by_client_id": "(client_request_id, id DESC) WHERE client_request_id <> ''",
    "usage_failed": "(id) WHERE state <> 'complete'",
}
_WITHOUT = """
    SELECT part.inhrelid::regclass::text FROM pg_inherits AS part
    WHERE part.inhparent = %s::regclass AND NOT EXISTS (
        SELECT FROM pg_index AS own JOIN pg_inherits AS joined ON joined.inhrelid = own.indexrelid
        WHERE own.indrelid = part.inhrelid AND joined.inhparent = %s::regclass
    )
"""


def add(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Make the indexes. It may be interrupted, and repeated."""
    with schema_editor.connection.cursor() as cursor:
        for name, on in INDEXES.items():
            cursor.execute(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {TABLE} {on}")
            cursor.execute(_WITHOUT, [TABLE, name])
            for (part,) in cursor.fetchall():
                own = f"{part.removeprefix(TABLE).lstrip('_')}_{name}"
                cursor.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{own}"')  # what an interrupted one left
                cursor.execute(f'CREATE INDEX CONCURRENTLY "{own}" ON {part} {on}')
                cursor.execute(f'ALTER INDEX {name} ATTACH PARTITION "{own}"')


def remove(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the indexes, and with them those of the partitions."""
    for name in INDEXES:
        schema_editor.execute(f"DROP INDEX {name}")


class Migration(migrations.Migration):
    """Four indexes."""

    atomic = False
    dependencies: ClassVar = [("billing", "0037_end_users")]
    operations: ClassVar[list[Operation]] = [migrations.RunPython(add, remove)]

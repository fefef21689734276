"""Row-level security of deferred requests, events that only grow, and the sequence of fences."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

APPEND_ONLY = """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON workers_replicaevent
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change()
"""


class Migration(migrations.Migration):
    """Protect, then number."""

    dependencies: ClassVar = [("workers", "0001_initial"), ("tenants", "0002_guards")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(enable_sql("workers_deferredrequest"), disable_sql("workers_deferredrequest")),
        migrations.RunSQL(APPEND_ONLY, "DROP TRIGGER append_only ON workers_replicaevent"),
        migrations.RunSQL("CREATE SEQUENCE workers_fence_seq", "DROP SEQUENCE workers_fence_seq"),
    ]

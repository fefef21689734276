"""Two processes that retire the same month at once: the second waits for the first, and then finds it retired."""

from importlib import import_module
from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

BEFORE: str = import_module("billing.migrations.0009_final_statements").RETIRE
_REPLACE = BEFORE.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
_LOCK = "EXECUTE format('LOCK TABLE %I IN SHARE MODE', part);\n"
#: SHARE locks do not exclude each other, so that each of two waits for the other before it drops the table.
_LOCK_ALONE = """BEGIN
            EXECUTE format('LOCK TABLE %I IN SHARE ROW EXCLUSIVE MODE', part);
        EXCEPTION WHEN undefined_table THEN
            RETURN NULL;  -- another process retired it while this one waited for the lock
        END;
"""


class Migration(migrations.Migration):
    """Replaces one function; its rights stay as they are."""

    dependencies: ClassVar = [("billing", "0010_partitions_at_once")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(_REPLACE.replace(_LOCK, _LOCK_ALONE), _REPLACE)]

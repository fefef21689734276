"""Two processes that make the same partition at once: the second waits for the first, and then finds it made."""

from importlib import import_module
from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

BEFORE: str = import_module("billing.migrations.0009_final_statements").MAKE
_REPLACE = BEFORE.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
_LOCK = "LOCK TABLE billing_usagerecord IN ACCESS EXCLUSIVE MODE;\n"
_AGAIN = """        IF to_regclass(part) IS NOT NULL THEN
            RETURN false;  -- another process made it while this one waited for the lock
        END IF;
"""


class Migration(migrations.Migration):
    """Replaces one function; its rights stay as they are."""

    dependencies: ClassVar = [("billing", "0009_final_statements")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(_REPLACE.replace(_LOCK, _LOCK + _AGAIN), _REPLACE)]

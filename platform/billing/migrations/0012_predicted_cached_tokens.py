"""What routing expected of an engine's prefix cache, beside what the engine reported, in rows and roll-ups.

The new checks are not validated, because a validation reads the whole table. No row can violate them yet.
"""

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

ROWS, ROLLUPS = "billing_usagerecord", "billing_usagerollup"
OF_ROWS = ("predicted_cached_tokens", "nearest_warm_tokens", "diverged_message")
SUM = "predicted_cached_tokens"

_guards = import_module("billing.migrations.0008_usage_only_grows")
_guard: Callable[[str, str, str], str] = _guards.guard
_added: Callable[[tuple[str, ...], tuple[str, ...]], str] = _guards.added
_IDENTITY, _SUMS = _guards.BUCKETS[ROLLUPS]


def replaced_guard(*more: str) -> str:
    """Return SQL that replaces the function of the roll-ups' trigger, so that it guards further sums too."""
    function, _, _ = _guard(ROLLUPS, _added(_IDENTITY, (*_SUMS, *more)), "the drain adds to sums").partition(
        "CREATE TRIGGER"
    )
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


ADD = f"""
    ALTER TABLE {ROWS}
        {", ".join(f"ADD COLUMN {name} integer" for name in OF_ROWS)},
        ADD CONSTRAINT {ROWS}_prediction_check
            CHECK ({" AND ".join(f"{name} >= 0" for name in OF_ROWS)}) NOT VALID;
"""
REMOVE = f"ALTER TABLE {ROWS} {', '.join(f'DROP COLUMN {name}' for name in OF_ROWS)}"
ADD_TO_ROLLUP = f"""
    ALTER TABLE {ROLLUPS}
        ADD COLUMN {SUM} bigint NOT NULL DEFAULT 0,
        ADD CONSTRAINT {ROLLUPS}_{SUM}_check CHECK ({SUM} >= 0) NOT VALID;
"""


class Migration(migrations.Migration):
    """Columns, checks and one function; none of them reads or rewrites a table."""

    dependencies: ClassVar = [("billing", "0011_retire_at_once")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            ADD,
            REMOVE,
            state_operations=[
                migrations.AddField("usagerecord", name, models.PositiveIntegerField(null=True)) for name in OF_ROWS
            ],
        ),
        migrations.RunSQL(
            ADD_TO_ROLLUP + replaced_guard(SUM),
            replaced_guard() + f"ALTER TABLE {ROLLUPS} DROP COLUMN {SUM}",
            state_operations=[
                migrations.AddField("usagerollup", SUM, models.PositiveBigIntegerField(db_default=0, default=0))
            ],
        ),
    ]

"""Histograms of TTFT and TPOT in roll-ups: numbers of buckets, and how many requests are in each."""

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import Value

_guards = import_module("billing.migrations.0008_usage_only_grows")
_classes = import_module("billing.migrations.0027_token_classes")
_guard: Callable[[str, str, str], str] = _guards.guard
_added: Callable[[tuple[str, ...], tuple[str, ...]], str] = _guards.added
replaced_guard: Callable[..., str] = _classes.replaced_guard
ROLLUPS = "billing_usagerollup"
SUMS: tuple[str, ...] = (_classes.SUM, *_classes.PARTS)
NAMES = {"latency_buckets": models.SmallIntegerField(), "latency_counts": models.IntegerField()}
COUNTED = "(SELECT coalesce(sum(each), 0) FROM unnest({0}.latency_counts) AS each)"
GROWS = (
    "cardinality(NEW.latency_buckets) >= cardinality(OLD.latency_buckets)"
    f" AND {COUNTED.format('NEW')} >= {COUNTED.format('OLD')}"
)


def guarded() -> str:
    """Return SQL that replaces the function of the roll-ups' trigger, so that no histogram shrinks either."""
    identity, sums = _guards.BUCKETS[ROLLUPS]
    condition = f"{_added(identity, (*sums, *SUMS))} AND {GROWS}"
    function, _, _ = _guard(ROLLUPS, condition, "the drain adds to sums").partition("CREATE TRIGGER")
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    """Two columns, which neither read nor rewrite the table. An earlier release leaves them empty, or as they are."""

    dependencies: ClassVar = [("billing", "0028_postings_but_usage")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            f"""
            ALTER TABLE {ROLLUPS}
                ADD COLUMN latency_buckets smallint[] NOT NULL DEFAULT '{{}}',
                ADD COLUMN latency_counts integer[] NOT NULL DEFAULT '{{}}';
            {guarded()}
            """,
            f"{replaced_guard(*SUMS)} ALTER TABLE {ROLLUPS} DROP COLUMN latency_buckets, DROP COLUMN latency_counts",
            state_operations=[
                migrations.AddField(
                    "usagerollup", name, ArrayField(base, default=list, db_default=Value([], ArrayField(base)))
                )
                for name, base in NAMES.items()
            ],
        )
    ]

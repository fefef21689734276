"""Two more classes of tokens: cache writes and reasoning, counted in rows and roll-ups, with prices of their own."""

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

_earlier = import_module("billing.migrations.0012_predicted_cached_tokens")
SUM: str = _earlier.SUM
replaced_guard: Callable[..., str] = _earlier.replaced_guard
PARTS = ("cache_write_tokens", "reasoning_tokens")
REPORTED = ("reported_prompt_tokens", "reported_completion_tokens")
#: Not valid: rows of earlier releases, which have defaults, are not read.
ADD = """
    ALTER TABLE billing_usagerecord
        ADD COLUMN cache_write_tokens integer NOT NULL DEFAULT 0,
        ADD COLUMN reasoning_tokens integer NOT NULL DEFAULT 0,
        ADD COLUMN reported_prompt_tokens integer,
        ADD COLUMN reported_completion_tokens integer;
    ALTER TABLE billing_usagerecord
        ADD CONSTRAINT billing_usagerecord_classes CHECK (
            cache_write_tokens BETWEEN 0 AND prompt_tokens AND reasoning_tokens BETWEEN 0 AND completion_tokens
        ) NOT VALID,
        ADD CONSTRAINT billing_usagerecord_as_reported CHECK (
            (reported_prompt_tokens IS NULL OR reported_prompt_tokens = prompt_tokens + cached_prompt_tokens)
            AND (reported_completion_tokens IS NULL OR reported_completion_tokens = completion_tokens)
        ) NOT VALID;
"""
ADD_TO_ROLLUP = f"""
    ALTER TABLE billing_usagerollup
        {", ".join(f"ADD COLUMN {name} bigint NOT NULL DEFAULT 0" for name in PARTS)},
        ADD CONSTRAINT billing_usagerollup_classes_check
            CHECK ({" AND ".join(f"{name} >= 0" for name in PARTS)}) NOT VALID;
"""
DROP_FROM_ROLLUP = "ALTER TABLE billing_usagerollup " + ", ".join(f"DROP COLUMN {name}" for name in PARTS)
DROP = "ALTER TABLE billing_usagerecord " + ", ".join(f"DROP COLUMN {name}" for name in (*PARTS, *REPORTED))


class Migration(migrations.Migration):
    """Columns with defaults, which do not rewrite the tables. An earlier release leaves them at these."""

    dependencies: ClassVar = [("billing", "0026_chargeback")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            ADD,
            DROP,
            state_operations=[
                *[
                    migrations.AddField("usagerecord", name, models.PositiveIntegerField(db_default=0, default=0))
                    for name in PARTS
                ],
                *[
                    migrations.AddField("usagerecord", name, models.PositiveIntegerField(null=True))
                    for name in REPORTED
                ],
            ],
        ),
        migrations.RunSQL(
            ADD_TO_ROLLUP + replaced_guard(SUM, *PARTS),
            replaced_guard(SUM) + DROP_FROM_ROLLUP,
            state_operations=[
                migrations.AddField("usagerollup", name, models.PositiveBigIntegerField(db_default=0, default=0))
                for name in PARTS
            ],
        ),
        migrations.AddField("priceversion", "cache_write_pico", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("priceversion", "reasoning_pico", models.BigIntegerField(blank=True, null=True)),
        migrations.AddConstraint(
            "priceversion",
            models.CheckConstraint(
                name="class_prices_not_negative",
                condition=(models.Q(cache_write_pico=None) | models.Q(cache_write_pico__gte=0))
                & (models.Q(reasoning_pico=None) | models.Q(reasoning_pico__gte=0)),
            ),
        ),
    ]

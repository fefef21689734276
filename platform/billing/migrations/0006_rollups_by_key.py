"""Roll-ups by key, with coalesced and bypassed requests. Existing sums get the all-zero key."""

from typing import ClassVar
from uuid import UUID

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

NO_KEY = UUID(int=0)
ADDED = ("coalesced_requests", "bypassed_requests", "avoided_engine_ms")
_BUCKET = "starts_at, tenant_id, project_id, model_name"
_SUMMED = (
    "requests",
    "errors",
    "prediction_hits",
    "prefix_hits",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "avoided_tokens",
    "amount_pico",
    "saved_prediction_pico",
    "saved_prefix_pico",
)
#: The reverse migration merges the keys of a bucket into one row.
WITHOUT_KEYS = f"""
    CREATE TEMPORARY TABLE summed ON COMMIT DROP AS
        SELECT {_BUCKET}, {", ".join(f"sum({name}) AS {name}" for name in _SUMMED)}
        FROM billing_usagerollup GROUP BY {_BUCKET};
    DELETE FROM billing_usagerollup;
    INSERT INTO billing_usagerollup ({_BUCKET}, {", ".join(_SUMMED)})
        SELECT {_BUCKET}, {", ".join(_SUMMED)} FROM summed;
    DROP TABLE summed;
"""


class Migration(migrations.Migration):
    """Columns of the roll-ups, their uniqueness, and a table of bypasses that a tenant may read its own part of."""

    dependencies: ClassVar = [("billing", "0005_avoided_and_coalesced")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("usagerollup", "key_id", models.UUIDField(db_default=NO_KEY, default=NO_KEY)),
        *[
            migrations.AddField("usagerollup", name, models.PositiveBigIntegerField(db_default=0, default=0))
            for name in ADDED
        ],
        migrations.AddConstraint(
            "usagerollup",
            models.UniqueConstraint(
                fields=("starts_at", "tenant_id", "project_id", "key_id", "model_name"), name="rollup_once_per_key"
            ),
        ),
        migrations.RemoveConstraint("usagerollup", "rollup_once"),
        migrations.RunSQL(migrations.RunSQL.noop, WITHOUT_KEYS),
        migrations.CreateModel(
            name="BypassRollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("starts_at", models.DateTimeField()),
                ("tenant_id", models.UUIDField()),
                ("reason", models.CharField(max_length=64)),
                ("requests", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant_id", "starts_at", "reason"), name="bypass_rollup_once")
                ],
            },
        ),
        migrations.RunSQL(enable_sql("billing_bypassrollup"), disable_sql("billing_bypassrollup")),
    ]

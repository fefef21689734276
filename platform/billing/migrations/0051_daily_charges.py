"""What tenants' requests of a day were charged for, for statements. The background role fills it afterwards."""

from typing import Any, ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import confine_sql, disable_sql, enable_sql, unconfine_sql

TABLE = "billing_dailycharge"
COUNTED = (
    *("requests", "paid_requests", "engine_ms", "prompt_tokens", "cached_prompt_tokens", "completion_tokens"),
    *("cache_write_tokens", "reasoning_tokens", "avoided_prompt_tokens", "avoided_cached_prompt_tokens"),
    *("avoided_completion_tokens", "streams", "stream_tokens"),
)
#: Sums that may exceed 64 bits.
LARGE = (
    *("amount_pico", "saved_prediction_pico", "saved_prefix_pico"),
    *("stream_tokens_squared", "stream_ns", "stream_tokens_ns"),
)
TEXTS = {"model_name": 200, "currency": 3, "charge": 16, "priority": 8}
KEYS: list[tuple[str, Any]] = [
    ("starts_at", models.DateTimeField()),
    ("tenant_id", models.UUIDField()),
    ("project_id", models.UUIDField()),
    ("price_version_id", models.UUIDField(null=True)),
]


class Migration(migrations.Migration):
    """Expand: a new table and a column with a default, which an earlier release neither reads nor writes."""

    dependencies: ClassVar = [("billing", "0050_billing_runs")]
    operations: ClassVar[list[Operation]] = [
        migrations.AddField("foldedday", "has_charges", models.BooleanField(db_default=False, default=False)),
        migrations.CreateModel(
            name="DailyCharge",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                *KEYS,
                *[(name, models.CharField(max_length=length)) for name, length in TEXTS.items()],
                *[(name, models.BigIntegerField()) for name in COUNTED],
                *[(name, models.DecimalField(decimal_places=0, max_digits=38)) for name in LARGE],
            ],
            options={
                "indexes": [models.Index(fields=["starts_at"], name="daily_charge_at")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            *("tenant_id", "starts_at", "project_id", "model_name", "price_version_id", "currency"),
                            *("charge", "priority"),
                        ),
                        name="daily_charge_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.RunSQL(enable_sql(TABLE), disable_sql(TABLE)),
        migrations.RunSQL(confine_sql(TABLE), unconfine_sql(TABLE)),
    ]

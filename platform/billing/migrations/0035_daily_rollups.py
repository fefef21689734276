"""Daily roll-ups, for reports of all tenants over months. The background role fills them while Hearth serves."""

from typing import Any, ClassVar
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import F, Value

from tenants.database.rls import disable_sql, enable_sql

NO_KEY = UUID(int=0)
BUCKETS = ArrayField(models.SmallIntegerField())
COUNTS = ArrayField(models.BigIntegerField())
COUNTED = (
    "requests",
    "errors",
    "refused_requests",
    "prediction_hits",
    "coalesced_requests",
    "bypassed_requests",
    "prefix_hits",
    "prompt_tokens",
    "cached_prompt_tokens",
    "predicted_cached_tokens",
    "completion_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "avoided_tokens",
    "avoided_engine_ms",
)
#: Those that UsageRollup got later than its table.
LATER = {
    "refused_requests",
    "coalesced_requests",
    "bypassed_requests",
    "predicted_cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "avoided_engine_ms",
}


def _counted(name: str) -> Any:
    if name in LATER:
        return models.PositiveBigIntegerField(db_default=0, default=0)
    return models.PositiveBigIntegerField(default=0)


class Migration(migrations.Migration):
    """Expand: new tables, which an earlier release neither reads nor writes."""

    dependencies: ClassVar = [("billing", "0034_dunning")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="FoldedDay",
            fields=[
                ("starts_at", models.DateTimeField(primary_key=True, serialize=False)),
                ("folded_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="DailyRollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("starts_at", models.DateTimeField()),
                ("tenant_id", models.UUIDField()),
                ("project_id", models.UUIDField()),
                ("key_id", models.UUIDField(db_default=NO_KEY, default=NO_KEY)),
                ("model_name", models.CharField(max_length=200)),
                *[(name, _counted(name)) for name in COUNTED],
                (
                    "latency_buckets",
                    ArrayField(models.SmallIntegerField(), db_default=Value([], BUCKETS), default=list),
                ),
                ("latency_counts", ArrayField(models.BigIntegerField(), db_default=Value([], COUNTS), default=list)),
                *[
                    (name, models.DecimalField(decimal_places=0, default=0, max_digits=38))
                    for name in ("amount_pico", "saved_prediction_pico", "saved_prefix_pico")
                ],
            ],
            options={
                "indexes": [
                    models.Index(F("tenant_id"), F("starts_at").desc(), name="daily_rollup_by_tenant"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("starts_at", "tenant_id", "project_id", "key_id", "model_name"),
                        name="daily_rollup_once",
                    )
                ],
            },
        ),
        migrations.RunSQL(enable_sql("billing_dailyrollup"), disable_sql("billing_dailyrollup")),
    ]

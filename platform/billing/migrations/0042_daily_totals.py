"""Daily roll-ups by tenant and of all tenants, for pages over months. The background role fills them afterwards."""

from importlib import import_module
from typing import Any, ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tenants.database.rls import disable_sql, enable_sql

_daily = import_module("billing.migrations.0035_daily_rollups")
#: How the names of tables begin, and those of indexes and constraints.
LENGTHS = {"Daily": "daily", "HalfHourly": "half_hourly"}


def _table(name: str, keys: list[tuple[str, Any]], **options: Any) -> migrations.CreateModel:
    """Return the operation that makes a table with the sums of DailyRollup, and these columns instead of its own."""
    (made,) = (each for each in _daily.Migration.operations if getattr(each, "name", "") == "DailyRollup")
    own = [
        (column, field.clone()) for column, field in made.fields if column not in {"tenant_id", "project_id", "key_id"}
    ]
    return migrations.CreateModel(name=name, fields=[*own, *keys], options=options)


def _once(name: str, *fields: str) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=fields, name=name)


class Migration(migrations.Migration):
    """Expand: new tables and a column with a default, which an earlier release neither reads nor writes.

    Tenants' reports read which days and half-hours are folded, which says nothing about anybody.
    """

    dependencies: ClassVar = [("billing", "0041_stripe_returns")]
    operations: ClassVar[list[Operation]] = [
        *(
            _table(
                f"{length}TenantRollup",
                [("tenant_id", models.UUIDField())],
                indexes=[models.Index(fields=("starts_at",), name=f"{name}_tenant_rollup_at")],
                constraints=[_once(f"{name}_tenant_rollup_once", "tenant_id", "starts_at", "model_name")],
            )
            for length, name in LENGTHS.items()
        ),
        *(
            _table(
                f"{length}PlatformRollup",
                [],
                constraints=[_once(f"{name}_platform_rollup_once", "starts_at", "model_name")],
            )
            for length, name in LENGTHS.items()
        ),
        migrations.CreateModel(
            name="DailyBypassRollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("starts_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=64)),
                ("requests", models.PositiveBigIntegerField(default=0)),
            ],
            options={"constraints": [_once("daily_bypass_rollup_once", "starts_at", "reason")]},
        ),
        migrations.CreateModel(
            name="FoldedHalfHour",
            fields=[
                ("starts_at", models.DateTimeField(primary_key=True, serialize=False)),
                ("folded_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.AddField("foldedday", "is_summed", models.BooleanField(db_default=False, default=False)),
        *(
            migrations.RunSQL(enable_sql(table), disable_sql(table))
            for table in ("billing_dailytenantrollup", "billing_halfhourlytenantrollup")
        ),
        *(
            migrations.RunSQL(enable_sql(table, "true"), disable_sql(table))
            for table in ("billing_foldedday", "billing_foldedhalfhour")
        ),
    ]

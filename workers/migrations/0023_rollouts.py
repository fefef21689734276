"""Rollouts, what gateways say of them, and how each deployment wants its own."""

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models.functions import Now

import tenants.ids

CANARIES = (("", "None"), *((name, name.capitalize()) for name in ("pending", "running", "passed", "failed")))
STATES = tuple((name, name.capitalize()) for name in ("running", "paused", "undoing", "done", "undone", "replaced"))


class Migration(migrations.Migration):
    """Two tables, and columns with defaults, so that processes of the version before go on."""

    dependencies: ClassVar = [
        ("catalogue", "0005_engine_options"),
        ("workers", "0022_fetching_epoch"),
    ]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField(
            "deployment",
            "rollout",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            "gatewayload",
            "replicas",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.UUIDField(), blank=True, db_default=[], default=list, size=None
            ),
        ),
        migrations.AddField(
            "replica",
            "canary",
            field=models.CharField(blank=True, choices=CANARIES, db_default="", default="", max_length=16),
        ),
        migrations.AddField(
            "replica",
            "canary_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            "replica",
            "canary_note",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.CreateModel(
            name="Rollout",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("slots_per_replica", models.PositiveSmallIntegerField()),
                ("earlier_slots_per_replica", models.PositiveSmallIntegerField()),
                ("state", models.CharField(choices=STATES, default="running", max_length=16)),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("waits_for", models.CharField(blank=True, default="", max_length=500)),
                ("most_serving", models.PositiveSmallIntegerField(default=0)),
                ("started_by", models.CharField(blank=True, default="", max_length=200)),
                ("started_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="rollouts", to="workers.deployment"
                    ),
                ),
                (
                    "earlier_revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="catalogue.modelrevision"
                    ),
                ),
                (
                    "revision",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="rollouts",
                        to="catalogue.modelrevision",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            "replica",
            "rollout",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="replicas",
                to="workers.rollout",
            ),
        ),
        migrations.CreateModel(
            name="RolloutTraffic",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("process", models.CharField(max_length=200)),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("failures", models.PositiveBigIntegerField(default=0)),
                ("slow", models.PositiveBigIntegerField(default=0)),
                (
                    "replica",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="traffic", to="workers.replica"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "rollout traffic",
            },
        ),
        migrations.AddIndex(
            model_name="rollout",
            index=models.Index(
                models.F("deployment"), models.OrderBy(models.F("id"), descending=True), name="rollouts_by_deployment"
            ),
        ),
        migrations.AddConstraint(
            model_name="rollout",
            constraint=models.UniqueConstraint(
                condition=models.Q(("finished_at", None)),
                fields=("deployment",),
                name="one_open_rollout_per_deployment",
            ),
        ),
        migrations.AddConstraint(
            model_name="rollouttraffic",
            constraint=models.UniqueConstraint(fields=("process", "replica"), name="traffic_once_per_process"),
        ),
    ]

"""Slots with leases, placeholders, what scaling decides from and what it decided."""

from typing import ClassVar

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import tenants.ids


class Migration(migrations.Migration):
    """Expand."""

    dependencies: ClassVar = [("catalogue", "0002_guards"), ("workers", "0003_deferred_attempts")]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="GatewayLoad",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("process", models.CharField(max_length=200)),
                ("in_flight_requests", models.PositiveIntegerField(default=0)),
                ("in_flight_tokens", models.PositiveBigIntegerField(default=0)),
                ("held_requests", models.PositiveIntegerField(default=0)),
                ("held_tokens", models.PositiveBigIntegerField(default=0)),
                ("reported_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="Placeholder",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("engine", models.CharField(blank=True, default="", max_length=16)),
                ("target_level", models.CharField(choices=[("h0", "H0"), ("h2", "H2")], max_length=8)),
                ("level", models.CharField(choices=[("h0", "H0"), ("h2", "H2")], default="h0", max_length=8)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("requested", "Requested"),
                            ("warming", "Warming"),
                            ("warm", "Warm"),
                            ("promoted", "Promoted"),
                            ("evicting", "Evicting"),
                            ("evicted", "Evicted"),
                            ("lost", "Lost"),
                        ],
                        default="requested",
                        max_length=16,
                    ),
                ),
                ("state_since", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("fence", models.BigIntegerField(default=0)),
                ("pid", models.PositiveIntegerField(blank=True, null=True)),
                ("pid_start_ticks", models.BigIntegerField(blank=True, null=True)),
                ("boot_id", models.CharField(blank=True, default="", max_length=64)),
                ("memory_bytes", models.BigIntegerField(blank=True, null=True)),
                ("warm_seconds", models.FloatField(blank=True, null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ScaleDecision",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("up", "Up"),
                            ("down", "Down"),
                            ("wake", "Wake"),
                            ("prepare", "Prepare"),
                            ("release", "Release"),
                        ],
                        max_length=16,
                    ),
                ),
                ("from_replicas", models.PositiveSmallIntegerField()),
                ("to_replicas", models.PositiveSmallIntegerField()),
                ("reason", models.CharField(max_length=500)),
                ("inputs", models.JSONField(default=dict)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
        ),
        migrations.CreateModel(
            name="SlotLease",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(choices=[("replica", "Replica"), ("placeholder", "Placeholder")], max_length=16),
                ),
                ("fence", models.BigIntegerField()),
                (
                    "acquired_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("released_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="StartTime",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("level", models.CharField(choices=[("cold", "Cold"), ("h0", "H0"), ("h2", "H2")], max_length=8)),
                ("seconds", models.FloatField()),
                ("process_seconds", models.FloatField()),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
        ),
        migrations.AddField(
            model_name="deployment", name="drain_seconds", field=models.PositiveIntegerField(default=600)
        ),
        migrations.AddField(
            model_name="deployment", name="less_wanted_peak", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="deployment", name="less_wanted_since", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="deployment", name="max_replicas", field=models.PositiveSmallIntegerField(default=1)
        ),
        migrations.AddField(
            model_name="deployment", name="min_replicas", field=models.PositiveSmallIntegerField(default=1)
        ),
        migrations.AddField(
            model_name="deployment", name="more_wanted_since", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="deployment", name="scale_down_delay_seconds", field=models.FloatField(default=300.0)
        ),
        migrations.AddField(
            model_name="deployment", name="scale_up_delay_seconds", field=models.FloatField(default=5.0)
        ),
        migrations.AddField(
            model_name="deployment", name="slots_per_replica", field=models.PositiveSmallIntegerField(default=1)
        ),
        migrations.AddField(
            model_name="deployment", name="target_tokens_per_replica", field=models.PositiveIntegerField(default=16384)
        ),
        migrations.AddField(
            model_name="deploymentpool", name="prepared_replicas", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="node", name="address", field=models.CharField(default="127.0.0.1", max_length=200)
        ),
        migrations.AddField(model_name="pool", name="high_water", field=models.FloatField(default=0.7)),
        migrations.AddField(model_name="pool", name="low_water", field=models.FloatField(default=0.45)),
        migrations.AddField(
            model_name="pool",
            name="placeholder_level",
            field=models.CharField(choices=[("h0", "H0"), ("h2", "H2")], default="h2", max_length=8),
        ),
        migrations.AddField(
            model_name="pool", name="placeholders_per_node", field=models.PositiveSmallIntegerField(default=0)
        ),
        migrations.AddField(
            model_name="replica", name="drain_deadline", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="replica", name="reserved_at", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.AddField(
            model_name="replica",
            name="revision",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="replicas",
                to="catalogue.modelrevision",
            ),
        ),
        migrations.AddField(
            model_name="replica",
            name="start_level",
            field=models.CharField(
                blank=True, choices=[("cold", "Cold"), ("h0", "H0"), ("h2", "H2")], default="", max_length=8
            ),
        ),
        migrations.AddField(
            model_name="replica", name="start_note", field=models.CharField(blank=True, default="", max_length=500)
        ),
        migrations.AddField(
            model_name="slot", name="fault", field=models.CharField(blank=True, default="", max_length=500)
        ),
        migrations.AlterField(
            model_name="replica",
            name="state",
            field=models.CharField(
                choices=[
                    ("requested", "Requested"),
                    ("reserved", "Reserved"),
                    ("starting", "Starting"),
                    ("warming", "Warming"),
                    ("ready", "Ready"),
                    ("suspect", "Suspect"),
                    ("draining", "Draining"),
                    ("backoff", "Backoff"),
                    ("stopped", "Stopped"),
                    ("lost", "Lost"),
                    ("failed", "Failed"),
                ],
                default="requested",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="slot",
            name="health",
            field=models.CharField(
                choices=[("ok", "Ok"), ("quarantined", "Quarantined"), ("gone", "Gone")], default="ok", max_length=16
            ),
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("slots_per_replica__gte", 1)), name="deployment_takes_slots"
            ),
        ),
        migrations.AddConstraint(
            model_name="deployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("target_tokens_per_replica__gte", 1)), name="deployment_has_target"
            ),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("low_water__gt", 0), ("low_water__lt", models.F("high_water")), ("high_water__lte", 1)
                ),
                name="pool_water_marks",
            ),
        ),
        migrations.AddField(
            model_name="gatewayload",
            name="deployment",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="loads", to="workers.deployment"
            ),
        ),
        migrations.AddField(
            model_name="placeholder",
            name="deployment",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="placeholders",
                to="workers.deployment",
            ),
        ),
        migrations.AddField(
            model_name="placeholder",
            name="node",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="placeholders", to="workers.node"
            ),
        ),
        migrations.AddField(
            model_name="replica",
            name="placeholder",
            field=models.OneToOneField(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="replica",
                to="workers.placeholder",
            ),
        ),
        migrations.AddField(
            model_name="scaledecision",
            name="deployment",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="decisions", to="workers.deployment"
            ),
        ),
        migrations.AddField(
            model_name="scaledecision",
            name="pool",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="decisions", to="workers.pool"
            ),
        ),
        migrations.AddField(
            model_name="slotlease",
            name="placeholder",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="leases", to="workers.placeholder"
            ),
        ),
        migrations.AddField(
            model_name="slotlease",
            name="replica",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="leases", to="workers.replica"
            ),
        ),
        migrations.AddField(
            model_name="slotlease",
            name="slot",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="leases", to="workers.slot"
            ),
        ),
        migrations.AddField(
            model_name="starttime",
            name="pool",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="start_times", to="workers.pool"
            ),
        ),
        migrations.AddField(
            model_name="starttime",
            name="replica",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="start_times", to="workers.replica"
            ),
        ),
        migrations.AddField(
            model_name="starttime",
            name="revision",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="start_times", to="catalogue.modelrevision"
            ),
        ),
        migrations.AddConstraint(
            model_name="gatewayload",
            constraint=models.UniqueConstraint(fields=("process", "deployment"), name="load_once_per_process"),
        ),
        migrations.AddIndex(
            model_name="placeholder", index=models.Index(fields=["node", "state"], name="placeholder_by_node")
        ),
        migrations.AddIndex(
            model_name="scaledecision",
            index=models.Index(
                models.F("deployment"), models.OrderBy(models.F("id"), descending=True), name="scale_decisions"
            ),
        ),
        migrations.AddConstraint(
            model_name="slotlease",
            constraint=models.UniqueConstraint(
                condition=models.Q(("released_at", None)), fields=("slot",), name="slot_leased_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="slotlease",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "replica"), ("placeholder", None), ("replica__isnull", False)),
                    models.Q(("kind", "placeholder"), ("placeholder__isnull", False), ("replica", None)),
                    _connector="OR",
                ),
                name="lease_has_one_holder",
            ),
        ),
        migrations.AddIndex(
            model_name="starttime",
            index=models.Index(
                models.F("revision"),
                models.F("level"),
                models.OrderBy(models.F("id"), descending=True),
                name="start_times",
            ),
        ),
    ]

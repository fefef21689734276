"""Reservations and their measured hours."""

from typing import ClassVar

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.models import F, Q
from django.db.models.functions import Now

import tenants.ids
from tenants.database.rls import disable_sql, enable_sql

RESERVATION, HOUR = "reserved_capacity_capacityreservation", "reserved_capacity_reservedhour"
IS_OWNER = "current_user = pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = TG_RELID))"
GUARD = f"""
    CREATE FUNCTION hearth_guard_{RESERVATION}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF {IS_OWNER} THEN
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
            RETURN NEW;
        END IF;
        IF TG_OP = 'UPDATE' THEN
            IF to_jsonb(NEW) - 'ends_at' - 'model_names' = to_jsonb(OLD) - 'ends_at' - 'model_names'
                AND NEW.model_names @> OLD.model_names
                AND (NEW.ends_at IS NOT DISTINCT FROM OLD.ends_at
                     OR NEW.ends_at >= now() AND (OLD.ends_at IS NULL OR NEW.ends_at < OLD.ends_at))
            THEN RETURN NEW; END IF;
        END IF;
        RAISE EXCEPTION '% only grows: % is refused; only an end comes sooner, and names are added',
            TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
    END $$;
    CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE ON {RESERVATION}
        FOR EACH ROW EXECUTE FUNCTION hearth_guard_{RESERVATION}();
"""
UNGUARD = f"DROP TRIGGER only_grows ON {RESERVATION}; DROP FUNCTION hearth_guard_{RESERVATION}();"
APPEND_ONLY = f"""
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {HOUR}
        FOR EACH ROW EXECUTE FUNCTION hearth_refuse_change();
"""


class Migration(migrations.Migration):
    """Two tables, of which a tenant reads its own rows."""

    initial = True
    dependencies: ClassVar = [("tenants", "0015_scrape_tokens")]
    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="CapacityReservation",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("deployment", models.CharField(max_length=63)),
                (
                    "model_names",
                    django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), size=None),
                ),
                ("slots", models.PositiveIntegerField()),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField(null=True)),
                ("currency", models.CharField(max_length=3)),
                ("slot_hour_pico", models.PositiveBigIntegerField()),
                ("tokens_per_slot_hour", models.PositiveBigIntegerField(default=0)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="reservations",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["deployment", "starts_at"], name="reservations_by_deployment")],
                "constraints": [
                    models.CheckConstraint(condition=Q(("slots__gte", 1)), name="reservation_has_slots"),
                    models.CheckConstraint(
                        condition=Q(("ends_at", None), ("ends_at__gte", F("starts_at")), _connector="OR"),
                        name="reservation_ends_after_it_begins",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ReservedHour",
            fields=[
                ("id", models.UUIDField(default=tenants.ids.new_id, editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("starts_at", models.DateTimeField()),
                ("slots", models.PositiveIntegerField()),
                ("available_seconds", models.PositiveBigIntegerField()),
                (
                    "reservation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="hours",
                        to="reserved_capacity.capacityreservation",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant_id", "-starts_at"], name="reserved_hours_by_tenant")],
                "constraints": [
                    models.UniqueConstraint(fields=("reservation", "starts_at"), name="reserved_hour_once"),
                    models.CheckConstraint(
                        condition=Q(("available_seconds__lte", F("slots") * 3600)),
                        name="available_is_part_of_reserved",
                    ),
                ],
            },
        ),
        migrations.RunSQL(enable_sql(RESERVATION), disable_sql(RESERVATION)),
        migrations.RunSQL(enable_sql(HOUR), disable_sql(HOUR)),
        migrations.RunSQL(GUARD, UNGUARD),
        migrations.RunSQL(APPEND_ONLY, f"DROP TRIGGER append_only ON {HOUR}"),
    ]

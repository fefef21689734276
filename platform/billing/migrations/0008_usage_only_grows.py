"""Usage rows and roll-ups only grow: triggers refuse every change but those that rating and the drain make.

The owner of a table is exempt: it moves rows from the default partition into that of their month, and converts them in
migrations. No process of Hearth runs as the owner.
"""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

IS_OWNER = "current_user = pg_get_userbyid((SELECT relowner FROM pg_class WHERE oid = TG_RELID))"
#: Rating sets these columns of a row, once.
CHARGED = ("price_version_id", "currency", "amount_pico", "saved_prediction_pico", "saved_prefix_pico")
#: The columns that identify a bucket, and those that the drain adds to. Savings are no such sums: they can be negative.
BUCKETS = {
    "billing_usagerollup": (
        ("id", "starts_at", "tenant_id", "project_id", "key_id", "model_name"),
        (
            "requests",
            "errors",
            "refused_requests",
            "prediction_hits",
            "coalesced_requests",
            "bypassed_requests",
            "prefix_hits",
            "prompt_tokens",
            "cached_prompt_tokens",
            "completion_tokens",
            "avoided_tokens",
            "avoided_engine_ms",
            "amount_pico",
        ),
    ),
    "billing_bypassrollup": (("id", "starts_at", "tenant_id", "reason"), ("requests",)),
}


def guard(table: str, condition: str, allowed: str) -> str:
    """Return SQL that refuses every DELETE, and every UPDATE that does not meet ``condition``."""
    return f"""
        CREATE FUNCTION hearth_guard_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF {IS_OWNER} THEN
                IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                RETURN NEW;
            END IF;
            IF TG_OP = 'UPDATE' THEN
                IF {condition} THEN RETURN NEW; END IF;
            END IF;
            RAISE EXCEPTION '% only grows: % is refused; only {allowed}', TG_TABLE_NAME, TG_OP
                USING ERRCODE = 'restrict_violation';
        END $$;
        CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE ON {table}
            FOR EACH ROW EXECUTE FUNCTION hearth_guard_{table}();
    """


def unguard(table: str) -> str:
    """Return the SQL that undoes :func:`guard`."""
    return f"DROP TRIGGER only_grows ON {table}; DROP FUNCTION hearth_guard_{table}()"


def rated() -> str:
    """Return the condition that an UPDATE sets a row's missing price and changes nothing else."""
    prices = ", ".join(f"'{name}'" for name in CHARGED)
    return f"""OLD.amount_pico IS NULL AND NEW.amount_pico IS NOT NULL
        AND to_jsonb(NEW) - ARRAY[{prices}] = to_jsonb(OLD) - ARRAY[{prices}]"""


def added(identity: tuple[str, ...], sums: tuple[str, ...]) -> str:
    """Return the condition that an UPDATE keeps a bucket's identity and makes no sum smaller."""
    row = f"({', '.join(f'NEW.{name}' for name in identity)}) = ({', '.join(f'OLD.{name}' for name in identity)})"
    return " AND ".join((row, *(f"NEW.{name} >= OLD.{name}" for name in sums)))


class Migration(migrations.Migration):
    """Triggers only. Those of the partitioned table hold for each of its partitions, also for later ones."""

    dependencies: ClassVar = [("billing", "0007_errors_of_requests")]
    operations: ClassVar[list[Operation]] = [
        migrations.RunSQL(
            guard("billing_usagerecord", rated(), "rating sets a missing price, once"), unguard("billing_usagerecord")
        ),
        *[
            migrations.RunSQL(guard(table, added(*columns), "the drain adds to sums"), unguard(table))
            for table, columns in BUCKETS.items()
        ],
    ]

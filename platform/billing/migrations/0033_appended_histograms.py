"""Roll-ups' histograms may be appended, so that a bucket's number may occur twice, and are merged from time to time."""

from collections.abc import Callable
from importlib import import_module
from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

_guards = import_module("billing.migrations.0008_usage_only_grows")
_histograms = import_module("billing.migrations.0029_latency_histograms")
_guard: Callable[[str, str, str], str] = _guards.guard
_added: Callable[[tuple[str, ...], tuple[str, ...]], str] = _guards.added
guarded: Callable[[], str] = _histograms.guarded
ROLLUPS: str = _histograms.ROLLUPS
SUMS: tuple[str, ...] = _histograms.SUMS
COUNTED: str = _histograms.COUNTED
#: What the drain does nearly always. No sub-select: with one PL/pgSQL starts an executor for each row, which takes two
#: thirds of the time that all else of an update takes.
APPENDED = """
    NEW.latency_buckets[:cardinality(OLD.latency_buckets)] = OLD.latency_buckets
    AND NEW.latency_counts[:cardinality(OLD.latency_counts)] = OLD.latency_counts
    AND 0 <= ALL (NEW.latency_counts)
"""
MERGED = f"NEW.latency_buckets @> OLD.latency_buckets AND {COUNTED.format('NEW')} >= {COUNTED.format('OLD')}"


def appendable() -> str:
    """Return SQL that replaces the function of the roll-ups' trigger: each request of a histogram stays in it."""
    identity, sums = _guards.BUCKETS[ROLLUPS]
    grown = _added(identity, (*sums, *SUMS))
    grown += " AND cardinality(NEW.latency_buckets) = cardinality(NEW.latency_counts)"
    either = f"{grown} AND {APPENDED} THEN RETURN NEW; END IF; IF {grown} AND {MERGED}"
    function, _, _ = _guard(ROLLUPS, either, "the drain adds to sums").partition("CREATE TRIGGER")
    return function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    """One function. An earlier release, which merges each time, meets both conditions."""

    dependencies: ClassVar = [("billing", "0032_payment_failures")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(appendable(), guarded())]

"""Daily roll-ups: sums of a day's roll-ups, so that reports over months read a small part of the rows.

A day in UTC is folded by the background role some time after its end, while drains go on:

1. The day is noted as being folded. A batch that adds to its roll-ups from then on removes the note (:func:`outdate`).
2. Batches that began before are waited for, so that none is left which does not know the note.
3. One transaction locks the note, writes the sums and marks the day as folded; if the note is gone, it writes nothing.

So a day that is marked as folded equals its roll-ups. A late row makes the day outdated, reports read its roll-ups
until it is folded again. Money is never decided by daily roll-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection, transaction

from billing.ledger.rollups import SUMS
from billing.ledger.usage_rows import Buckets
from billing.models import FoldedDay, UsageRollup

DAY = timedelta(days=1)
_KEYS = ", ".join(("tenant_id", "project_id", "key_id", "model_name"))
_FOLD = f"""
    WITH fine AS (
        SELECT * FROM billing_usagerollup WHERE starts_at >= %(begin)s AND starts_at < %(end)s
    ), sums AS (
        SELECT {_KEYS}, {", ".join(f"sum({name}) AS {name}" for name in SUMS)} FROM fine GROUP BY {_KEYS}
    ), histogram AS (
        SELECT {_KEYS}, array_agg(number ORDER BY number) AS numbers, array_agg(requests ORDER BY number) AS counts
        FROM (
            SELECT {_KEYS}, number, sum(count)::bigint AS requests
            FROM fine, unnest(latency_buckets, latency_counts) AS bucket(number, count) GROUP BY {_KEYS}, number
        ) AS merged GROUP BY {_KEYS}
    )
    INSERT INTO billing_dailyrollup (starts_at, {_KEYS}, {", ".join(SUMS)}, latency_buckets, latency_counts)
    SELECT %(begin)s, {_KEYS}, {", ".join(SUMS)}, coalesce(numbers, '{{}}'), coalesce(counts, '{{}}')
    FROM sums LEFT JOIN histogram USING ({_KEYS})
"""
_COMPARED = "sum(amount_pico), sum(prompt_tokens + cached_prompt_tokens + completion_tokens)"
_BOTH = f"""
    WITH day AS (
        SELECT starts_at AS begin FROM billing_foldedday
        WHERE folded_at IS NOT NULL AND starts_at >= %s AND starts_at < %s
    )
    SELECT tenant_id, 'fine', {_COMPARED} FROM day JOIN billing_usagerollup
        ON starts_at >= begin AND starts_at < begin + interval '24 hours' GROUP BY tenant_id
    UNION ALL
    SELECT tenant_id, 'daily', {_COMPARED} FROM day JOIN billing_dailyrollup ON starts_at = begin GROUP BY tenant_id
"""
#: Of a tenant: money in pico-dollars, and tokens.
Compared = tuple[int, int]


def day_of(moment: datetime) -> datetime:
    """Return the start of the day in UTC that contains a moment."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def outdate(buckets: Buckets) -> None:
    """Note that these buckets' days change. Call it in the transaction that adds to them, after the addition."""
    days = {day_of(bucket.starts_at) for bucket, _ in buckets}
    if days:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM billing_foldedday WHERE starts_at = ANY(%s)", [sorted(days)])


def waiting(until: datetime) -> list[datetime]:
    """Return the days before ``until``, a start of a day, that are not folded, newest first."""
    first = UsageRollup.objects.order_by("starts_at").values_list("starts_at", flat=True).first()
    if first is None:
        return []
    folded = set(FoldedDay.objects.exclude(folded_at=None).values_list("starts_at", flat=True))
    days = [until - number * DAY for number in range(1, (until - day_of(first)) // DAY + 1)]
    return [day for day in days if day not in folded]


def announce(day: datetime) -> None:
    """Note that a day is being folded, in a transaction of its own (step 1)."""
    FoldedDay.objects.get_or_create(starts_at=day)


def write(day: datetime) -> bool:
    """Write a day's sums if it was announced and is still unchanged (step 3); return whether it is folded."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM billing_foldedday WHERE starts_at = %s AND folded_at IS NULL FOR UPDATE SKIP LOCKED", [day]
        )
        if cursor.fetchone() is None:
            return False
        cursor.execute("DELETE FROM billing_dailyrollup WHERE starts_at = %s", [day])
        cursor.execute(_FOLD, {"begin": day, "end": day + DAY})
        cursor.execute("UPDATE billing_foldedday SET folded_at = now() WHERE starts_at = %s", [day])
    return True


def folded(begin: datetime, end: datetime) -> Sequence[datetime]:
    """Return the folded days that begin in a period, in order."""
    found = FoldedDay.objects.filter(starts_at__gte=begin, starts_at__lt=end).exclude(folded_at=None)
    return list(found.order_by("starts_at").values_list("starts_at", flat=True))


def compared(begin: datetime, end: datetime) -> tuple[Mapping[UUID, Compared], Mapping[UUID, Compared]]:
    """Return each tenant's sums over the folded days of a period: of its roll-ups, and of its daily ones."""
    found: dict[str, dict[UUID, Compared]] = {"fine": {}, "daily": {}}
    with connection.cursor() as cursor:
        cursor.execute(_BOTH, [begin, end])
        for tenant_id, which, pico, tokens in cursor.fetchall():
            found[which][tenant_id] = int(pico), int(tokens)
    return found["fine"], found["daily"]


def forget(begin: datetime, end: datetime) -> None:
    """Have the days of a period folded again."""
    FoldedDay.objects.filter(starts_at__gte=begin, starts_at__lt=end).delete()

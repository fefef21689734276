"""Daily roll-ups: sums of a day's roll-ups, so that reports over months read a small part of the rows.

There are three kinds: by key and model, by tenant and model, and by model (of all tenants). The last two are also kept
by half an hour, for charts whose steps begin within a day in UTC, as days of other time zones do. A report reads the
smallest table that has what it groups by.

A day in UTC is folded by the background role some time after its end, while drains go on:

1. The day is noted as being folded. A batch that adds to its roll-ups from then on removes the note (:func:`outdate`).
2. Batches that began before are waited for, so that none is left which does not know the note.
3. One transaction locks the note, writes the sums and marks the day as folded; if the note is gone, it writes nothing.

Half-hours of the days that are not folded yet are folded in the same way, some minutes after their end, so that pages
of the last day read few rows.

So a day that is marked as folded equals its roll-ups. A late row makes the day outdated, reports read its roll-ups
until it is folded again. Money is never decided by daily roll-ups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet

from billing.ledger.rollups import SUMS
from billing.ledger.usage_rows import Buckets
from billing.models import FoldedDay, FoldedHalfHour, UsageRollup

DAY = timedelta(days=1)
HALF_HOUR = timedelta(minutes=30)


def _fold(into: str, source: str, keys: str, step: str = "24 hours") -> str:
    """Return SQL that adds up a span's rows of a table of roll-ups by a step in UTC, and by these columns."""
    keys = f"step, {keys}"
    return f"""
        WITH fine AS (
            SELECT *, date_bin('{step}', starts_at, '2000-01-01 00:00+00') AS step
            FROM {source} WHERE starts_at >= %(begin)s AND starts_at < %(end)s
        ), sums AS (
            SELECT {keys}, {", ".join(f"sum({name}) AS {name}" for name in SUMS)} FROM fine GROUP BY {keys}
        ), histogram AS (
            SELECT {keys}, array_agg(number ORDER BY number) AS numbers, array_agg(requests ORDER BY number) AS counts
            FROM (
                SELECT {keys}, number, sum(count)::bigint AS requests
                FROM fine, unnest(latency_buckets, latency_counts) AS bucket(number, count) GROUP BY {keys}, number
            ) AS merged GROUP BY {keys}
        )
        INSERT INTO {into} ({keys.replace("step", "starts_at")}, {", ".join(SUMS)}, latency_buckets, latency_counts)
        SELECT {keys}, {", ".join(SUMS)}, coalesce(numbers, '{{}}'), coalesce(counts, '{{}}')
        FROM sums LEFT JOIN histogram USING ({keys})
    """


_OF_TENANT = "tenant_id, model_name"
#: What makes a day's rows of each table, in an order in which those that it is made from are there.
_TABLES = {
    into: _fold(into, *more)
    for into, *more in (
        ("billing_dailyrollup", "billing_usagerollup", "tenant_id, project_id, key_id, model_name"),
        ("billing_halfhourlytenantrollup", "billing_usagerollup", _OF_TENANT, "30 minutes"),
        ("billing_dailytenantrollup", "billing_halfhourlytenantrollup", _OF_TENANT),
        ("billing_halfhourlyplatformrollup", "billing_halfhourlytenantrollup", "model_name", "30 minutes"),
        ("billing_dailyplatformrollup", "billing_halfhourlyplatformrollup", "model_name"),
    )
} | {
    "billing_dailybypassrollup": """
        INSERT INTO billing_dailybypassrollup (starts_at, reason, requests)
        SELECT %(begin)s, reason, sum(requests) FROM billing_bypassrollup
        WHERE starts_at >= %(begin)s AND starts_at < %(end)s GROUP BY reason
    """,
}
_OF_HALF_HOURS = ("billing_halfhourlytenantrollup", "billing_halfhourlyplatformrollup")
#: Held while tables are written: a day and half an hour of it are never written at once.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('daily_rollups'))"
_COMPARED = "sum(amount_pico), sum(prompt_tokens + cached_prompt_tokens + completion_tokens)"
#: Tables by which spans they have, and by the column that says whose a row is.
_COMPARED_TABLES = (
    ("billing_dailyrollup", "day", "tenant_id"),
    ("billing_dailytenantrollup", "day", "tenant_id"),
    ("billing_dailyplatformrollup", "day", "%(all)s::uuid"),
    ("billing_halfhourlytenantrollup", "part", "tenant_id"),
    ("billing_halfhourlyplatformrollup", "part", "%(all)s::uuid"),
    ("billing_dailycharge", "charged", "tenant_id"),
)


def _sums(name: str, span: str, table: str, whose: str) -> str:
    """Return SQL for the sums of a table within the spans of a CTE, by whose they are."""
    return f"""
        SELECT '{name}', whose, {_COMPARED}
        FROM (SELECT *, {whose} AS whose FROM {span} JOIN {table} ON starts_at >= begin AND starts_at < behind) AS found
        GROUP BY whose
    """


_BOTH = """
    WITH day AS (
        SELECT starts_at AS begin, starts_at + interval '24 hours' AS behind FROM billing_foldedday
        WHERE folded_at IS NOT NULL AND is_summed AND starts_at >= %(begin)s AND starts_at < %(end)s
    ), half AS (
        SELECT starts_at AS begin, starts_at + interval '30 minutes' AS behind FROM billing_foldedhalfhour
        WHERE folded_at IS NOT NULL AND starts_at >= %(begin)s AND starts_at < %(end)s
            AND date_bin('24 hours', starts_at, '2000-01-01 00:00+00') NOT IN (SELECT begin FROM day)
    ), part AS (SELECT * FROM day UNION ALL SELECT * FROM half),
    charged AS (
        SELECT starts_at AS begin, starts_at + interval '24 hours' AS behind FROM billing_foldedday
        WHERE folded_at IS NOT NULL AND has_charges AND starts_at >= %(begin)s AND starts_at < %(end)s
    )
""" + " UNION ALL ".join(
    [_sums(span, span, "billing_usagerollup", "tenant_id") for span in ("day", "half", "charged")]
    + [_sums(table, span, table, whose) for table, span, whose in _COMPARED_TABLES]
)
_BOTH_BYPASSES = """
    WITH day AS (
        SELECT starts_at AS begin, starts_at + interval '24 hours' AS behind FROM billing_foldedday
        WHERE folded_at IS NOT NULL AND is_summed AND starts_at >= %(begin)s AND starts_at < %(end)s
    )
    SELECT true, reason, sum(requests) FROM day JOIN billing_bypassrollup
        ON starts_at >= begin AND starts_at < behind GROUP BY reason
    UNION ALL
    SELECT false, reason, sum(requests) FROM day JOIN billing_dailybypassrollup
        ON starts_at >= begin AND starts_at < behind GROUP BY reason
"""
_FOLDED_WITHIN = """
    SELECT starts_at, true FROM billing_foldedday
    WHERE folded_at IS NOT NULL AND is_summed AND starts_at > %(day)s AND starts_at < %(end)s
    UNION ALL
    SELECT starts_at, false FROM billing_foldedhalfhour
    WHERE folded_at IS NOT NULL AND starts_at >= %(begin)s AND starts_at <= %(half)s
    ORDER BY 1
"""
#: Stands for all tenants together.
ALL = UUID(int=0)
#: Of a tenant: money in pico-dollars, and tokens.
Compared = tuple[int, int]
Sums = Mapping[UUID, Compared]


def day_of(moment: datetime) -> datetime:
    """Return the start of the day in UTC that contains a moment."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def half_hour_of(moment: datetime) -> datetime:
    """Return the start of the half-hour that contains a moment."""
    return moment.astimezone(UTC).replace(minute=moment.minute // 30 * 30, second=0, microsecond=0)


def outdate(buckets: Buckets) -> None:
    """Note that these buckets' days change. Call it in the transaction that adds to them, after the addition."""
    moments = {bucket.starts_at for bucket, _ in buckets}
    days, halves = ({of(moment) for moment in moments} for of in (day_of, half_hour_of))
    if days:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM billing_foldedday WHERE starts_at = ANY(%s)", [sorted(days)])
            cursor.execute("DELETE FROM billing_foldedhalfhour WHERE starts_at = ANY(%s)", [sorted(halves)])


def waiting(until: datetime) -> list[datetime]:
    """Return the days before ``until``, a start of a day, that are not folded, newest first."""
    first = UsageRollup.objects.order_by("starts_at").values_list("starts_at", flat=True).first()
    if first is None:
        return []
    folded = set(_complete().values_list("starts_at", flat=True))
    days = [until - number * DAY for number in range(1, (until - day_of(first)) // DAY + 1)]
    return [day for day in days if day not in folded]


def announce(day: datetime) -> None:
    """Note that a day is being folded, in a transaction of its own (step 1).

    One that the release before folded is folded again.
    """
    noted, created = FoldedDay.objects.get_or_create(starts_at=day)
    if not created and not noted.is_summed:
        FoldedDay.objects.filter(starts_at=day, is_summed=False).update(folded_at=None)


def write(day: datetime) -> bool:
    """Write a day's sums if it was announced and is still unchanged (step 3); return whether it is folded."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK)
        cursor.execute(
            "SELECT 1 FROM billing_foldedday WHERE starts_at = %s AND folded_at IS NULL FOR UPDATE SKIP LOCKED", [day]
        )
        if cursor.fetchone() is None:
            return False
        _rewrite(cursor, _TABLES, day, day + DAY)
        cursor.execute("DELETE FROM billing_foldedhalfhour WHERE starts_at >= %s AND starts_at < %s", [day, day + DAY])
        cursor.execute("UPDATE billing_foldedday SET folded_at = now(), is_summed = true WHERE starts_at = %s", [day])
    return True


def waiting_half_hours(first: datetime, until: datetime) -> list[datetime]:
    """Return the half-hours from ``first``, the start of one, that ended before ``until`` and are not folded."""
    folded = set(_complete_half_hours().filter(starts_at__gte=first).values_list("starts_at", flat=True))
    halves = [first + number * HALF_HOUR for number in range((until - first) // HALF_HOUR)]
    return [half for half in halves if half not in folded]


def announce_half_hours(halves: Sequence[datetime]) -> None:
    """Note that half-hours are being folded, in a transaction of its own (step 1)."""
    FoldedHalfHour.objects.bulk_create([FoldedHalfHour(starts_at=half) for half in halves], ignore_conflicts=True)


def write_half_hour(half: datetime) -> bool:
    """Write the sums of an announced half-hour if it is still unchanged (step 3); return whether it is folded."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK)
        cursor.execute(
            "SELECT 1 FROM billing_foldedhalfhour WHERE starts_at = %s AND folded_at IS NULL FOR UPDATE SKIP LOCKED",
            [half],
        )
        if cursor.fetchone() is None:
            return False
        if _complete().filter(starts_at=day_of(half)).exists():  # its day was folded meanwhile, and has it
            FoldedHalfHour.objects.filter(starts_at=half).delete()
            return False
        _rewrite(cursor, _OF_HALF_HOURS, half, half + HALF_HOUR)
        cursor.execute("UPDATE billing_foldedhalfhour SET folded_at = now() WHERE starts_at = %s", [half])
    return True


def _rewrite(cursor: CursorWrapper, tables: Iterable[str], begin: datetime, end: datetime) -> None:
    for table in tables:
        cursor.execute(f"DELETE FROM {table} WHERE starts_at >= %s AND starts_at < %s", [begin, end])
        cursor.execute(_TABLES[table], {"begin": begin, "end": end})


def folded_within(begin: datetime, end: datetime) -> tuple[Sequence[datetime], Sequence[datetime]]:
    """Return the folded days of which something lies in a period, and half-hours in it of other days (one query).

    Both are in order. A folded day has all of its half-hours.
    """
    with connection.cursor() as cursor:
        given = {"begin": begin, "end": end, "day": begin - DAY, "half": end - HALF_HOUR}
        cursor.execute(_FOLDED_WITHIN, given)
        rows = cursor.fetchall()
    days, halves = ([moment for moment, is_day in rows if is_day is wanted] for wanted in (True, False))
    return days, halves


def _complete_half_hours() -> QuerySet[FoldedHalfHour]:
    return FoldedHalfHour.objects.filter(folded_at__isnull=False)


def _complete() -> QuerySet[FoldedDay]:
    return FoldedDay.objects.filter(folded_at__isnull=False, is_summed=True)


def compared(begin: datetime, end: datetime) -> Mapping[str, tuple[Sums, Sums]]:
    """Return by table each tenant's sums over what is folded of a period: what its roll-ups have, and what it has.

    Tables of all tenants have one sum, of :data:`ALL`.
    """
    found: dict[str, dict[UUID, Compared]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(_BOTH, {"begin": begin, "end": end, "all": ALL})
        for which, whose, pico, tokens in cursor.fetchall():
            found[which][whose] = int(pico), int(tokens)
    fine = {"day": found["day"], "part": _added(found["day"], found["half"]), "charged": found["charged"]}
    return {
        table: (fine[span] if whose == "tenant_id" else _together(fine[span]), found[table])
        for table, span, whose in _COMPARED_TABLES
    }


def compared_bypasses(begin: datetime, end: datetime) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return how many requests of a period's folded days bypassed the cache, by reason.

    First what roll-ups have of these days, then what daily ones have.
    """
    fine: dict[str, int] = {}
    found: dict[str, int] = {}
    with connection.cursor() as cursor:
        cursor.execute(_BOTH_BYPASSES, {"begin": begin, "end": end})
        for is_fine, reason, requests in cursor.fetchall():
            (fine if is_fine else found)[reason] = int(requests)
    return fine, found


def _added(first: Sums, second: Sums) -> Sums:
    total: dict[UUID, Compared] = dict(first)
    for each, (pico, tokens) in second.items():
        before = total.get(each, (0, 0))
        total[each] = before[0] + pico, before[1] + tokens
    return total


def _together(sums: Sums) -> Sums:
    return {ALL: (sum(pico for pico, _ in sums.values()), sum(tokens for _, tokens in sums.values()))} if sums else {}


def forget(begin: datetime, end: datetime) -> None:
    """Have the days and half-hours of a period folded again."""
    FoldedDay.objects.filter(starts_at__gte=begin, starts_at__lt=end).delete()
    FoldedHalfHour.objects.filter(starts_at__gte=begin, starts_at__lt=end).delete()

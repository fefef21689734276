"""Fill a database with usage, or ask for it: ``python -m benchmarks.usage.steps fill ROWS`` | ``ask ROWS REPEATS``.

Run in an instance's environment. Prints lines of JSON: the fields of :class:`benchmarks.usage.report.Filled`, or of
:class:`benchmarks.usage.report.Asked`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django

DAYS, ROLLUP_DAYS = 6, 90
TENANTS, KEYS, MODELS = 40, 2, 2
PROMPT_PICO, CACHED_PICO, COMPLETION_PICO = 150_000, 15_000, 600_000
DAY = timedelta(days=1)
#: A question that took this long in all is not asked again.
LONGEST_MS = 60_000.0
#: What fill.sql calls: each request is the next tenant's.
TENANT_IN_TURN = """
    CREATE FUNCTION pg_temp.tenant_of(number bigint, tenants bigint) RETURNS int
    IMMUTABLE LANGUAGE sql AS 'SELECT (number % tenants)::int'
"""
#: What is asked, whether a person waits for it, and a function that asks.
Question = tuple[str, bool, Callable[[], object]]
Reader = Callable[..., Callable[[], object]]
FILL, EARLIER = (Path(__file__).with_name(name) for name in ("fill.sql", "earlier.sql"))


def first_day() -> datetime:
    """Return the first day of last month, on which the six days begin: a month that can be closed."""
    this = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (this - DAY).replace(day=1)


def fill(rows: int) -> None:
    """Fill the database, and print what with."""
    from django.db import connection

    from billing.ledger import partitions
    from billing.models import LedgerTransaction, UsageRollup

    began, start = time.perf_counter(), first_day()
    facts = _customers(start)
    partitions.ensure(start)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute(EARLIER.read_text(), facts | {"begin": start - (ROLLUP_DAYS - DAYS) * DAY, "end": start})
        cursor.execute(TENANT_IN_TURN)
        for number in range(DAYS):
            fill_day(cursor, facts, start + number * DAY, number * (rows // DAYS), rows // DAYS)
            print(f"day {number + 1} of {DAYS} after {time.perf_counter() - began:,.0f} s", file=sys.stderr, flush=True)
        cursor.execute("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('billing_usagerecord')")
        (size,) = cursor.fetchone()
    told = {
        "rows": rows // DAYS * DAYS,
        "rollups": UsageRollup.objects.count(),
        "postings": LedgerTransaction.objects.count(),
        "tenants": TENANTS,
        "gib": int(size) / 2**30,
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(told))


def fill_day(
    cursor: Any, facts: dict[str, Any], begin: datetime, first: int, rows: int, length: timedelta = DAY
) -> None:
    """Fill a day, or its first part of this length, with the requests that have these numbers."""
    from tenants.ids import first_id_at

    day = facts | {"begin": begin, "first": first, "rows": rows, "length": length}
    day |= {"first_id": first_id_at(begin), "behind_id": first_id_at(begin + length)}
    for statement in FILL.read_text().split(";\n"):
        if statement.strip():
            cursor.execute(statement, day)


def _customers(start: datetime) -> dict[str, Any]:
    """Make tenants with keys, models with a price, and an operator; return what the statements name of them."""
    from billing.models import LedgerAccount, PriceVersion
    from billing.pricing.prices import ensure_price_book
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.keys import keys
    from tenants.models import Project, Tenant, User

    User.objects.create(username="bench", is_staff=True)
    tenants = [registry.create_tenant(SYSTEM, slug=f"t{each}", name=f"Tenant {each}") for each in range(TENANTS)]
    Tenant.objects.update(created_at=start - 400 * DAY)
    projects = [Project.objects.get(tenant=each) for each in tenants]
    of_keys = [project for project in projects for _ in range(KEYS)]
    issued = [
        keys.issue(SYSTEM, project, name=str(each), scopes=["inference"]).key
        for project in projects
        for each in range(KEYS)
    ]
    LedgerAccount.objects.bulk_create(
        LedgerAccount(tenant_id=each.id, kind=kind, currency="USD")
        for each in tenants
        for kind in (LedgerAccount.Kind.RECEIVABLE, LedgerAccount.Kind.REVENUE)
    )
    prices = [
        PriceVersion.objects.create(
            book=ensure_price_book(),
            model_name=f"model-{each}",
            effective_from=start - 400 * DAY,
            prompt_pico=PROMPT_PICO,
            cached_prompt_pico=CACHED_PICO,
            completion_pico=COMPLETION_PICO,
        )
        for each in range(MODELS)
    ]
    ids: dict[str, Sequence[Any]] = {"tenants": tenants, "projects": of_keys, "keys": issued, "prices": prices}
    return {name: [each.id for each in found] for name, found in ids.items()} | {
        "tenants_all": TENANTS,
        "keys_each": KEYS,
        "models": MODELS,
        "prompt_pico": PROMPT_PICO,
        "cached_pico": CACHED_PICO,
        "completion_pico": COMPLETION_PICO,
    }


def ask(rows: int, repeats: int) -> None:
    """Ask each question, and print how long it took."""
    for what, waits, question in _questions(rows):
        times, partitions = [], 0
        once = what.startswith(("close", "export", "fold"))
        for _ in range(1 if once else 1 + repeats):
            with _partitions_read() as read:
                began = time.perf_counter()
                question()
                times.append(1000 * (time.perf_counter() - began))
            partitions = len(read)
            if sum(times) > LONGEST_MS:
                break
        told = {"what": what, "waits": waits, "first_ms": times[0], "ms": times[1:], "partitions": partitions}
        print(f"{what}: {times[0]:,.0f} ms", file=sys.stderr, flush=True)
        print(json.dumps(told), flush=True)


def _questions(rows: int) -> Iterator[Question]:
    """Yield what is asked, whether a person waits for it, and a function that asks."""
    get = _reader()
    yield from _about_requests(get, rows)
    yield from _about_periods(get)
    yield from _about_books(get)


def _reader() -> Reader:
    """Return what makes a function that reads a page of a period as an operator."""
    from django.test import Client

    from tenants.models import User

    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.get(username="bench"))

    def get(path: str, first: datetime, days: int, **query: str) -> Callable[[], object]:
        def read() -> None:
            period = {"from": first.isoformat(), "to": (first + days * DAY).isoformat()}
            response = client.get(path, period | query)
            assert response.status_code == 200, (path, response.status_code, response.content[:300])
            for _ in response:
                pass

        return read

    return get


def _about_requests(get: Reader, rows: int) -> Iterator[Question]:
    start = first_day()
    last = start + (DAYS - 1) * DAY
    sent = f"client-{rows // DAYS * DAYS - rows // DAYS // 2 // 10 * 10}"
    of_tenant = "/portal/tenants/t7/requests/"
    yield "page *Requests*, newest of a day", True, get("/portal/requests/", last, 1)
    yield "page *Requests*, newest of six days", True, get("/portal/requests/", start, DAYS)
    yield "page *Requests* of a tenant, a day", True, get(of_tenant, last, 1)
    yield "page *Requests* of a tenant, its errors of a day", True, get(of_tenant, last, 1, errors="platform")
    yield "log search by the id that a client sent, a tenant's day", True, get(of_tenant, last, 1, id=sent)
    yield "API: 500 requests of a tenant's day", True, get("/api/v1/usage", last, 1, tenant="t7", limit="500")
    yield "API: log search, all tenants, a day", True, get("/api/v1/usage", last, 1, request_id=sent)


def _about_periods(get: Reader) -> Iterator[Question]:
    from billing.drain import day_folding

    earliest = first_day() - (ROLLUP_DAYS - DAYS) * DAY
    for days in ("not folded", "folded"):
        if days == "folded":
            yield f"fold {ROLLUP_DAYS} days", False, lambda: day_folding.fold(datetime.now(UTC))
        for what, path in (
            ("page *Overview*", "/portal/"),
            ("page *Savings*", "/portal/savings/"),
            ("page *Usage* by model", "/portal/usage/"),
            ("API: series", "/api/v1/usage/series"),
        ):
            yield f"{what}, 90 days, {days}", True, get(path, earliest, ROLLUP_DAYS)
    yield "page of a tenant, 90 days", True, get("/portal/tenants/t7/", earliest, ROLLUP_DAYS)


def _about_books(get: Reader) -> Iterator[Question]:
    from billing.ledger import partitions
    from billing.months import closing
    from billing.reports import statements
    from reconciliation import books
    from retention import usage_export
    from tenants.audit import SYSTEM
    from tenants.ids import TenantId
    from tenants.models import Tenant

    start = first_day()
    tenant = Tenant.objects.get(slug="t7")
    month = statements.Month(tenant=tenant, year=start.year, month=start.month)
    yield "CSV of a tenant's day", False, get("/portal/tenants/t7/requests.csv", start + (DAYS - 1) * DAY, 1)
    yield "statement of a tenant's open month", False, lambda: statements.computed(month)
    yield (
        "`hearth reconcile`: usage, ledger and roll-ups of the month",
        False,
        lambda: books.compare(start + 28 * DAY, start),
    )
    yield "close a tenant's month", False, lambda: closing.close(SYSTEM, month)
    yield (
        "statement of a tenant's closed month",
        True,
        lambda: statements.statement(TenantId(tenant.id), start.year, start.month),
    )
    yield "export a day to CSV in gzip", False, lambda: usage_export.ensure(partitions.of_day(start.date()))


@contextmanager
def _partitions_read() -> Iterator[set[str]]:
    """Note the partitions in the plans of the block's queries."""
    from django.db import connection

    read: set[str] = set()

    def note(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any) -> Any:
        if "billing_usagerecord" in statement and "SELECT" in statement:
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (COSTS OFF) {statement}", params)
                lines = [str(line) for (line,) in cursor.fetchall()]
            read.update(
                found[1]
                for line in lines
                if (found := re.search(r" on (billing_usagerecord_(?:\d|default)\w*) ", line))
            )
        return execute(statement, params, many, context)

    with connection.execute_wrapper(note):
        yield read


def main() -> None:
    """Do what the arguments say."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    django.setup()
    what, *figures = sys.argv[1:]
    if what == "fill":
        fill(int(figures[0]))
    else:
        ask(int(figures[0]), int(figures[1]))


if __name__ == "__main__":
    main()

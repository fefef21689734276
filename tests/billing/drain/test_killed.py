"""Real writer and drain processes killed at random moments: nothing is lost and nothing counts twice."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from redis import Redis

from billing.budgets.holds import counter_name, counter_prefix
from billing.models import BudgetWindow, UsageRecord, UsageRollup, WalOffset
from tenants.ids import TenantId, new_id
from tests.billing.budget_fixture import budget
from tests.billing.conftest import Process, Processes, Sums, sums
from tests.billing.drain.test_drain import AMOUNT_PICO, INTERRUPTED_PICO
from tests.tenants import customers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("demo_prices")]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Poll a condition; fail if it does not become true in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not come true in time"
        time.sleep(0.02)


@contextmanager
def nobody_connected() -> Iterator[None]:
    """Close all connections of role hearth_app and prevent new ones."""
    database = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute(f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
        cursor.execute("SET ROLE hearth_app")
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'hearth_app'")
        cursor.execute("RESET ROLE")
        try:
            yield
        finally:
            cursor.execute(f"GRANT CONNECT ON DATABASE {database} TO PUBLIC")


def requests_of(writer: Process) -> dict[str, str]:
    """Return a writer's output so far: request id to ``done`` or ``open``."""
    lines = (line.split() for line in writer.output.read_text().splitlines())
    return {parts[1]: parts[0] for parts in lines if len(parts) == 2}


def test_killing_writers_and_drains_loses_nothing_and_charges_nothing_twice(processes: Processes) -> None:
    tenant_ids = [TenantId(new_id()) for _ in range(3)]
    writers = [processes.writer(tenant_id, 0) for tenant_id in tenant_ids]
    chance = random.Random()
    for writer in writers:
        for _ in range(3):
            drain = processes.drain()
            time.sleep(chance.uniform(0.6, 1.6))
            drain.kill()
        writer.kill()
    last = processes.drain()
    wait_until(lambda: not list(processes.wal_dir.glob("*.wal")))
    last.stop()

    told = {identity: how for writer in writers for identity, how in requests_of(writer).items()}
    stored = {identity.hex: state for identity, state in UsageRecord.objects.values_list("id", "state")}
    assert len(told) > 1000
    assert {identity: stored[identity] for identity in told} == {
        identity: "complete" if how == "done" else "interrupted" for identity, how in told.items()
    }
    assert len(stored) - len(told) <= len(writers), "at most the one each writer was at"
    rows = UsageRecord.objects.order_by()
    owed = (
        rows.filter(state="complete").count() * AMOUNT_PICO
        + rows.filter(state="interrupted", completion_tokens=5).count() * INTERRUPTED_PICO
        + rows.filter(state="interrupted", completion_tokens=3).count() * (INTERRUPTED_PICO - 2 * 600_000)
    )
    assert sums() == Sums(usage_pico=owed, rollup_pico=owed, ledger_pico=owed)
    assert sum(UsageRollup.objects.values_list("requests", flat=True)) == len(stored)
    assert not WalOffset.objects.exists()


def test_killing_drains_leaves_a_budget_with_what_its_rows_say(processes: Processes) -> None:
    customer = customers.create("acme")
    limit_pico = 10**15
    made = [budget(customer.tenant, limit_pico, period="total"), budget(customer.tenant, 1, action="alert")]
    writer = processes.writer(customer.tenant.id, 0)
    chance = random.Random()
    for _ in range(3):
        drain = processes.drain()
        time.sleep(chance.uniform(0.6, 1.6))
        drain.kill()
    writer.kill()
    last = processes.drain()
    wait_until(lambda: not list(processes.wal_dir.glob("*.wal")))
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        counter = counter_prefix(TenantId(customer.tenant.id)) + counter_name(made[0].id, 0)
        wait_until(lambda: redis.get(counter) == b"%d" % (limit_pico - sums().ledger_pico))
        redis.delete(counter)
    last.stop()
    windows = BudgetWindow.objects.exclude(spent_pico=0)
    assert sums().usage_pico > 0
    assert {window.budget_id: int(window.spent_pico) for window in windows} == {
        each.id: sums().usage_pico for each in made
    }


@pytest.mark.parametrize("table", ["billing_ledgerentry", "billing_usagerollup", "billing_waloffset"])
def test_a_drain_killed_in_the_middle_of_its_batch_leaves_nothing_of_it(processes: Processes, table: str) -> None:
    writer = processes.writer(new_id(), 50)
    wait_until(lambda: writer.output.read_text().endswith("ready\n"))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        drain = processes.drain()
        wait_until(lambda: is_waited_for(table))
        drain.kill()
    assert not UsageRecord.objects.exists()
    again = processes.drain()
    wait_until(lambda: UsageRecord.objects.count() == 45)
    again.stop()
    owed = 45 * AMOUNT_PICO
    assert sums() == Sums(usage_pico=owed, rollup_pico=owed, ledger_pico=owed)


def is_waited_for(table: str) -> bool:
    """Return whether a session waits for a lock on the table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass", [table])
        return bool(cursor.rowcount)


def test_a_row_is_seen_while_its_writer_lives(processes: Processes) -> None:
    drain = processes.drain()
    first = processes.writer(new_id(), 1)
    wait_until(UsageRecord.objects.exists)
    second = processes.writer(new_id(), 1)
    wait_until(lambda: bool(requests_of(second)))
    wait_until(lambda: UsageRecord.objects.count() == 2)
    drain.stop()
    assert {identity.hex for identity in UsageRecord.objects.values_list("id", flat=True)} == {
        *requests_of(first),
        *requests_of(second),
    }


def test_a_stopped_drain_has_stored_what_was_there(processes: Processes) -> None:
    writer = processes.writer(new_id(), 999)
    wait_until(lambda: writer.output.read_text().endswith("ready\n"))
    drain = processes.drain()
    wait_until(lambda: "draining" in drain.output.read_text())
    drain.stop()
    assert UsageRecord.objects.count() == 900  # every tenth is open, and its writer is alive


def test_a_database_that_is_away_costs_nothing_but_time(processes: Processes) -> None:
    drain = processes.drain()
    early = processes.writer(new_id(), 100)
    wait_until(lambda: UsageRecord.objects.count() == 90)
    with nobody_connected():
        late = processes.writer(new_id(), 100)
        wait_until(lambda: "cannot store usage" in drain.output.read_text())
    wait_until(lambda: UsageRecord.objects.count() == 180)
    early.kill()
    late.kill()
    wait_until(lambda: UsageRecord.objects.count() == 200)
    drain.stop()
    owed = 180 * AMOUNT_PICO + 20 * INTERRUPTED_PICO
    assert sums() == Sums(usage_pico=owed, rollup_pico=owed, ledger_pico=owed)

"""The drain over a failover of PostgreSQL: each request is charged once, also if the standby lacks the last batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hearth import secrets
from tenants.ids import new_id
from tests.billing.conftest import Processes
from tests.billing.drain.test_killed import requests_of, wait_until
from tests.replicated import postgres
from tests.replicated.postgres import PostgresPair

pytestmark = pytest.mark.long
REQUESTS = 500


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    """A migrated database on two servers."""
    found = secrets.load_or_create(Path(os.environ["HEARTH_DATA_DIR"]))
    with postgres.running(found.database_passwords) as made:
        for command in ("migrate", "ensure_partitions"):
            environment = os.environ | {"DATABASE_URL": made.owner_url}
            subprocess.run([sys.executable, "-m", "django", command], env=environment, check=True, capture_output=True)
        yield made


@pytest.fixture
def processes(tmp_path: Path, pair: PostgresPair) -> Iterator[Processes]:
    made = Processes(tmp_path, pair.app_url)
    made.wal_dir.mkdir()
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()


def stored(pair: PostgresPair) -> set[str]:
    """Return the requests that have a row. The same request twice would break the table's key."""
    try:
        with psycopg.connect(pair.app_url) as connection:
            return {str(row[0].hex) for row in connection.execute("SELECT id FROM billing_usagerecord")}
    except psycopg.OperationalError:
        return set()


def rolled_up(pair: PostgresPair) -> int:
    """Return the requests in roll-ups, which a batch that is stored twice would count twice."""
    with psycopg.connect(pair.app_url) as connection:
        found = connection.execute("SELECT sum(requests) FROM billing_usagerollup").fetchone()
    assert found is not None
    return int(found[0])


def test_a_failover_under_load_loses_no_usage_and_counts_none_twice(processes: Processes, pair: PostgresPair) -> None:
    pair.synchronous("*")
    drain, writer = processes.drain(), processes.writer(new_id(), 0)
    wait_until(lambda: len(stored(pair)) > REQUESTS)
    pair.fail_over()
    there = len(stored(pair))
    wait_until(lambda: len(stored(pair)) > there + REQUESTS)
    writer.kill()
    told = requests_of(writer)
    wait_until(lambda: told.keys() <= stored(pair))
    drain.stop()
    assert rolled_up(pair) == len(stored(pair))


def test_a_batch_that_the_promoted_standby_lacks_is_stored_again(processes: Processes, pair: PostgresPair) -> None:
    drain, first = processes.drain(), processes.writer(new_id(), REQUESTS)
    wait_until(lambda: len(stored(pair)) == REQUESTS * 9 // 10)
    pair.kill(1)  # an asynchronous standby that has fallen behind
    second = processes.writer(new_id(), REQUESTS)
    wait_until(lambda: len(stored(pair)) == 2 * REQUESTS * 9 // 10)
    pair.kill(0)
    pair.start(1)
    pair.promote()
    wait_until(lambda: len(stored(pair)) == 2 * REQUESTS * 9 // 10)
    for writer in (first, second):
        writer.kill()
    wait_until(lambda: {*requests_of(first), *requests_of(second)} <= stored(pair))
    drain.stop()
    assert rolled_up(pair) == 2 * REQUESTS

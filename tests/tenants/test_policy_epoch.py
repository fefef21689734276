"""A change and its notification become visible together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone

from tenants import policy_epoch
from tenants.keys import keys
from tenants.models import ApiKey, PolicyEpoch
from tenants.snapshot import snapshot
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer


@pytest.fixture
def committed(transactional_db: None) -> None:
    """Let this test commit; the previous test's flush deleted the epoch's row."""
    PolicyEpoch.objects.get_or_create(id=1)


@pytest.fixture
def listener(committed: None) -> Iterator[psycopg.Connection[Any]]:
    """Another connection that listens, as a gateway does."""
    given = connection.get_connection_params()
    known = {name: given[name] for name in ("dbname", "user", "password", "host", "port") if given.get(name)}
    with psycopg.connect(**known, autocommit=True) as other:
        other.execute(f"LISTEN {policy_epoch.CHANNEL}")
        yield other


def heard(listener: psycopg.Connection[Any]) -> list[str]:
    """Return the channels of all received notifications."""
    return [notice.channel for notice in listener.notifies(timeout=0.2)]


def seen(listener: psycopg.Connection[Any]) -> int:
    """Return the epoch that another connection reads."""
    row = listener.execute("SELECT value FROM tenants_policyepoch").fetchone()
    assert row is not None
    return int(row[0])


def test_a_notice_comes_with_the_commit_and_not_before(listener: psycopg.Connection[Any]) -> None:
    before = seen(listener)
    with transaction.atomic():
        policy_epoch.bump()
        assert (heard(listener), seen(listener)) == ([], before)
    assert (heard(listener), seen(listener)) == (["hearth_policy"], before + 1)


def test_two_changes_of_one_transaction_are_one_notice(listener: psycopg.Connection[Any]) -> None:
    before = seen(listener)
    with transaction.atomic():
        policy_epoch.bump()
        policy_epoch.bump()
    assert (heard(listener), seen(listener)) == (["hearth_policy"], before + 2)


def test_a_change_that_is_rolled_back_is_no_news(listener: psycopg.Connection[Any]) -> None:
    before = seen(listener)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        policy_epoch.bump()
        raise ZeroDivisionError
    assert (heard(listener), seen(listener), policy_epoch.current()) == ([], before, before)


def test_a_change_that_began_first_and_is_committed_last_is_not_missed(committed: None) -> None:
    early, middle, late = (customers.create(slug) for slug in ("early", "middle", "late"))
    known = snapshot.load()
    changed, may_raise, raised, may_commit = (threading.Event() for _ in range(4))

    def slowly() -> None:
        with transaction.atomic():
            ApiKey.objects.filter(id=early.key.id).update(revoked_at=timezone.now())
            changed.set()
            may_raise.wait(30)
            policy_epoch.bump(keys=[early.key.id])
            raised.set()
            may_commit.wait(30)

    def revoked() -> list[str]:
        nonlocal known
        known = known.refreshed(policy_epoch.changes_since(known.epoch))
        return [slug for each, slug in ((early, "early"), (middle, "middle"), (late, "late")) if is_dead(each)]

    def is_dead(customer: Customer) -> bool:
        return known.keys[customer.key.public_id].revoked

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(closing(slowly))
        changed.wait(30)
        keys.revoke(OPERATOR, middle.key)
        assert revoked() == ["middle"]
        may_raise.set()
        raised.wait(30)
        last = pool.submit(closing(lambda: keys.revoke(OPERATOR, late.key)))
        wait_for_lock()
        assert revoked() == ["middle"], "the later change waits for the earlier one"
        may_commit.set()
        first.result(30)
        last.result(30)
    assert revoked() == ["early", "middle", "late"]


def closing(work: Callable[[], object]) -> Callable[[], None]:
    """Return ``work`` for a thread, whose connection is closed at its end."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    return run


def wait_for_lock() -> None:
    """Wait until a session of this database waits for a lock."""
    deadline = time.monotonic() + 30
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with connection.cursor() as cursor:
        cursor.execute(waiting)
        while cursor.fetchone() is None:
            assert time.monotonic() < deadline, "no session waits"
            time.sleep(0.01)
            cursor.execute(waiting)

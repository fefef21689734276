"""A change and its notification become visible together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from tenants import policy_epoch
from tenants.models import PolicyEpoch


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

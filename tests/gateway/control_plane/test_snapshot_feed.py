"""What a gateway knows follows the database within a second, through notices and without, and through its failures."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from billing.pricing.prices import PriceTable
from catalogue import administration
from gateway.control_plane import snapshot_feed
from gateway.control_plane.snapshot_feed import ControlSnapshot, SnapshotFeed
from gateway.errors import Unavailable
from tenants import registry
from tenants.errors import KeyRefused
from tenants.keys import key_format, keys
from tenants.models import PolicyEpoch, TenantPolicy
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.tenants import MODEL, World, in_database, until
from tests.tenants.customers import OPERATOR

WITHIN_SECONDS = 1.0


@pytest.fixture
async def feed(two_tenants: World) -> AsyncIterator[SnapshotFeed]:
    """A feed that has its first view."""
    following = SnapshotFeed()
    following.start()
    await following.ready()
    yield following
    await asyncio.to_thread(following.stop)


async def refusal(feed: SnapshotFeed, text: str) -> str:
    """Return why a key is refused; an empty text when it is not."""
    try:
        await feed.authenticate(text)
    except KeyRefused as refused:
        return refused.reason
    return ""


@pytest.fixture
def own_session(two_tenants: World) -> int:
    """The PostgreSQL process that serves this test's own thread."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
    return int(pid)


async def seconds_until(condition: Callable[[], object]) -> float:
    """Return how long the condition takes to hold."""
    began = time.monotonic()
    await until(condition)
    return time.monotonic() - began


def end_sessions_but(spared: int) -> None:
    """End the sessions of this database, as a restart of the server would, but for the test's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename = current_user AND pid NOT IN (pg_backend_pid(), %s)",
            [spared],
        )


async def test_a_key_opens_at_once_and_is_dead_within_a_second_of_its_revocation(
    feed: SnapshotFeed, two_tenants: World
) -> None:
    issued = await in_database(lambda: keys.issue(OPERATOR, two_tenants.acme.project, name="new"))
    caller = await feed.authenticate(issued.secret)
    assert caller.key_id == issued.key.id
    await in_database(lambda: keys.revoke(OPERATOR, issued.key))
    await asyncio.sleep(WITHIN_SECONDS)
    assert await refusal(feed, issued.secret) == "revoked"


async def test_a_suspended_tenant_is_refused_within_a_second(feed: SnapshotFeed, two_tenants: World) -> None:
    await in_database(lambda: registry.suspend(OPERATOR, two_tenants.acme.tenant))
    await asyncio.sleep(WITHIN_SECONDS)
    assert await refusal(feed, two_tenants.acme.secret) == "tenant_suspended"
    assert await refusal(feed, two_tenants.globex.secret) == ""


async def test_a_key_that_expires_needs_no_news(feed: SnapshotFeed, two_tenants: World) -> None:
    soon = timezone.now() + timedelta(seconds=0.8)
    issued = await in_database(lambda: keys.issue(OPERATOR, two_tenants.acme.project, name="s", expires_at=soon))
    assert await refusal(feed, issued.secret) == ""
    await asyncio.sleep(1.0)
    assert await refusal(feed, issued.secret) == "expired"


async def test_a_new_replica_is_known_within_a_second_and_a_lost_one_is_not(
    feed: SnapshotFeed, two_tenants: World
) -> None:
    assert feed.snapshot.endpoints == {}
    await in_database(lambda: tenants.place(two_tenants, [1001, 1002]))
    assert await seconds_until(lambda: feed.snapshot.endpoints) < WITHIN_SECONDS
    assert [endpoint.base_url for endpoint in feed.snapshot.endpoints["demo"]] == [
        "http://127.0.0.1:1001",
        "http://127.0.0.1:1002",
    ]
    await in_database(tenants.stop_replicas)
    assert await seconds_until(lambda: not feed.snapshot.endpoints) < WITHIN_SECONDS


async def test_news_that_nobody_announced_is_seen_within_a_second_too(feed: SnapshotFeed, two_tenants: World) -> None:
    def silently() -> None:
        TenantPolicy.objects.create(tenant=two_tenants.acme.tenant, version=2, cache_mode="off")
        PolicyEpoch.objects.update(value=1_000_000)

    await in_database(silently)
    assert await seconds_until(lambda: feed.snapshot.callers.epoch == 1_000_000) < WITHIN_SECONDS
    caller = await feed.authenticate(two_tenants.acme.secret)
    assert caller.policy.cache_mode == "off"


async def test_unknown_keys_cost_a_short_wait_and_no_thread(feed: SnapshotFeed) -> None:
    threads = threading.active_count()
    unknown = [key_format.generate("hk").text() for _ in range(300)]
    reasons = asyncio.gather(*[refusal(feed, text) for text in unknown])
    most = 0
    async with asyncio.timeout(30):
        while not reasons.done():
            most = max(most, threading.active_count())
            await asyncio.sleep(0.01)
    assert set(await reasons) == {"unknown"}
    assert most == threads
    assert not feed._waiting


async def test_callers_that_waited_for_a_poll_continue_a_few_at_a_time(feed: SnapshotFeed) -> None:
    unknown = [key_format.generate("hk").text() for _ in range(100)]
    refused = [asyncio.ensure_future(refusal(feed, text)) for text in unknown]
    before, most = 0, 0
    while before < len(unknown):
        await asyncio.sleep(0)
        done = sum(each.done() for each in refused)
        before, most = done, max(most, done - before)
    assert most <= snapshot_feed.RESUMED_AT_ONCE


async def test_a_known_id_with_a_wrong_secret_is_refused_without_waiting(
    feed: SnapshotFeed, two_tenants: World
) -> None:
    forged = key_format.Credential(prefix="hk", public_id=two_tenants.acme.key.public_id, secret="A" * 43)
    refused = [asyncio.ensure_future(refusal(feed, text)) for text in (forged.text(), "nonsense")]
    await asyncio.sleep(0)
    assert [one.done() and one.result() for one in refused] == ["unknown", "malformed"]


async def test_a_database_that_comes_back_is_followed_again(
    feed: SnapshotFeed, two_tenants: World, own_session: int
) -> None:
    await in_database(lambda: end_sessions_but(own_session))
    assert await refusal(feed, two_tenants.acme.secret) == ""  # the last view stays in force
    issued = await in_database(lambda: keys.issue(OPERATOR, two_tenants.acme.project, name="after"))
    await until(lambda: issued.key.public_id in feed.snapshot.callers.keys)
    await in_database(lambda: keys.revoke(OPERATOR, two_tenants.acme.key))
    await asyncio.sleep(WITHIN_SECONDS)
    assert await refusal(feed, two_tenants.acme.secret) == "revoked"


async def test_a_session_ended_again_and_again_ends_nothing(
    feed: SnapshotFeed, two_tenants: World, own_session: int
) -> None:
    for _ in range(5):
        await in_database(lambda: end_sessions_but(own_session))
        await asyncio.sleep(0.1)
    issued = await in_database(lambda: keys.issue(OPERATOR, two_tenants.acme.project, name="after"))
    await until(lambda: issued.key.public_id in feed.snapshot.callers.keys)


async def test_a_listener_that_fails_does_not_stop_the_news(two_tenants: World) -> None:
    views: list[ControlSnapshot] = []

    def fail_once(old: ControlSnapshot | None, new: ControlSnapshot) -> None:
        views.append(new)
        if len(views) == 1:
            raise ZeroDivisionError

    following = SnapshotFeed(on_change=fail_once)
    following.start()
    try:
        await until(lambda: following._snapshot is not None)
        issued = await in_database(lambda: keys.issue(OPERATOR, two_tenants.acme.project, name="after"))
        await until(lambda: issued.key.public_id in following.snapshot.callers.keys)
    finally:
        await asyncio.to_thread(following.stop)
    assert len(views) >= 2


async def test_before_the_first_view_everybody_is_told_to_come_back() -> None:
    feed = SnapshotFeed()
    with pytest.raises(Unavailable) as error:
        await feed.authenticate(key_format.generate("hk").text())
    assert (error.value.status, error.value.code) == (503, "starting")


async def test_a_key_that_cannot_be_verified_is_not_called_wrong(feed: SnapshotFeed, two_tenants: World) -> None:
    await asyncio.to_thread(feed.stop)  # as good as a database that hangs: nobody looks any more
    with pytest.raises(Unavailable) as error:
        await feed.authenticate(key_format.generate("hk").text())
    assert (error.value.status, error.value.code) == (503, "key_unverifiable")
    assert not feed._waiting
    assert await refusal(feed, two_tenants.acme.secret) == ""


@pytest.mark.parametrize("first_read", [True, False])
def test_a_change_of_a_model_between_the_reads_of_models_and_of_callers_is_read_next(
    two_tenants: World, monkeypatch: pytest.MonkeyPatch, first_read: bool
) -> None:
    feed = SnapshotFeed()
    before = None if first_read else feed._read(None)
    models = SnapshotFeed._models

    def then_change(*arguments: Any) -> PriceTable:
        found = models(*arguments)
        monkeypatch.setattr(SnapshotFeed, "_models", models)
        administration.set_aliases(OPERATOR, MODEL, ["default"])
        return found

    monkeypatch.setattr(SnapshotFeed, "_models", then_change)
    # Callers follow changes that come while they are read, so something of them must have changed.
    registry.suspend(OPERATOR, two_tenants.globex.tenant)
    between = feed._read(before)
    assert not between.catalogue.models[MODEL].aliases
    assert feed._read(between).catalogue.models[MODEL].aliases == ("default",)

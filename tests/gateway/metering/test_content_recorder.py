"""A gateway records prompts and answers of projects that keep them, and never delays or fails a request for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from django.db import OperationalError, transaction

from gateway import metrics
from gateway.metering import content_recorder
from tenants.content import content_log, entries
from tenants.content.entries import MOST_BYTES, Content, Written
from tenants.models import ContentEntry, Project
from tests.gateway.fixtures.scripted_app import saying
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, in_database, raw_door, until
from tests.tenants.customers import OPERATOR

pytestmark = pytest.mark.parametrize("gateway", [raw_door], indirect=True)


async def switch(gateway: Gateway, days: int | None) -> None:
    """Switch acme's content log, and wait until the gateway has read it."""
    project = gateway.world.acme.project
    await in_database(lambda: content_log.set_days(OPERATOR, project, days))
    await until(lambda: gateway.caller().keeps_content == (days is not None))


async def kept(gateway: Gateway, count: int) -> list[Content]:
    """Wait for so many entries and return them, the earliest first."""

    def read() -> list[Content]:
        return [entries.opened(each) for each in ContentEntry.objects.order_by("id")]

    found: list[Content] = []
    while len(found) < count:
        found = await in_database(read)
        await asyncio.sleep(0.02)
    return found


def counted(outcome: str) -> float:
    """Return how many entries had this outcome."""
    return float(metrics.CONTENT_ENTRIES.labels(outcome)._value.get())


async def test_nothing_is_kept_until_it_is_switched_on_and_then_all_shapes_are(gateway: Gateway) -> None:
    await gateway.ask()
    await switch(gateway, 7)
    whole = await gateway.ask({**HELLO, "user": "somebody"}, headers={"cache-control": "no-store"})
    hit = await gateway.ask()
    streamed = await gateway.ask({**STREAMED, "seed": 1})
    await gateway.ask(key=gateway.world.globex.secret)
    first, second, third = await kept(gateway, 3)
    assert b'"somebody"' in first.prompt
    assert (first.answer, first.status, first.is_stream) == (whole.body, 200, False)
    assert hit.answer_headers["x-cache"] == "hit"
    assert second.answer == hit.body
    assert third.answer == streamed.body
    assert third.is_stream


async def test_a_failure_is_kept_as_its_client_received_it(gateway: Gateway) -> None:
    await switch(gateway, 7)
    gateway.let_all_say(saying({"error": {"message": "no such thing", "type": "x", "code": 400}}, status=400))
    got = await gateway.ask()
    (entry,) = await kept(gateway, 1)
    assert (entry.status, entry.answer) == (got.status, got.body)


async def test_what_is_long_is_cut_and_says_so(gateway: Gateway) -> None:
    await switch(gateway, 7)
    text = "x" * (MOST_BYTES + 1000)
    got = await gateway.ask({**HELLO, "messages": [{"role": "user", "content": text}]})
    (entry,) = await kept(gateway, 1)
    assert len(entry.prompt) == MOST_BYTES
    assert entry.prompt_cut > 1000
    assert (entry.answer, entry.answer_cut) == (got.body, 0)


async def test_a_database_that_refuses_fails_no_request(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await switch(gateway, 7)
    failed = counted("failed")

    def refuse(*_: object) -> None:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(entries, "write", refuse)
    assert (await gateway.ask()).status == 200
    await until(lambda: counted("failed") == failed + 1)
    monkeypatch.undo()
    assert (await gateway.ask()).status == 200
    assert len(await kept(gateway, 1)) == 1


async def test_too_many_that_wait_are_dropped_and_counted(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await switch(gateway, 7)
    monkeypatch.setattr(content_recorder, "MOST_WAITING_BYTES", 10)
    dropped = counted("dropped")
    assert (await gateway.ask()).status == 200
    assert counted("dropped") == dropped + 1


async def test_a_gateway_that_is_killed_loses_what_waits_and_nothing_else(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await switch(gateway, 7)
    first = await gateway.ask()
    assert len(await kept(gateway, 1)) == 1
    # killed: its thread writes nothing any more, and nobody closes it
    monkeypatch.setattr(gateway.runtime.components.contents, "_submit", lambda: None)
    assert (await gateway.ask({**HELLO, "seed": 2})).status == 200
    (entry,) = await kept(gateway, 1)
    assert entry.answer == first.body
    assert len(gateway.ends()) == 2  # what it costs is in the usage log all the same


async def test_what_waits_is_written_when_a_gateway_stops(gateway: Gateway) -> None:
    await switch(gateway, 7)
    await gateway.ask()
    await gateway.runtime.components.contents.close()
    assert await in_database(ContentEntry.objects.count) == 1


async def test_a_project_that_is_locked_loses_its_own_entries_and_no_other_tenants(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "LOCK_SECONDS", 0.05)
    await switch(gateway, 7)
    world, failed, is_done = gateway.world, counted("failed"), threading.Event()
    await in_database(lambda: content_log.set_days(OPERATOR, world.globex.project, 7))
    feed = gateway.runtime.feed
    await until(lambda: feed.snapshot.callers.authenticate(world.globex.secret).keeps_content)

    @transaction.atomic
    def lock() -> None:
        Project.objects.select_for_update().get(id=world.acme.project.id)
        is_locked.set()
        is_done.wait(20)

    is_locked = threading.Event()
    holder = asyncio.create_task(in_database(lock))
    await asyncio.to_thread(is_locked.wait, 20)
    await gateway.ask()
    await gateway.ask(key=world.globex.secret)
    await until(lambda: counted("failed") == failed + 1)
    assert len(await kept(gateway, 1)) == 1
    is_done.set()
    await holder
    assert (await in_database(ContentEntry.objects.get)).tenant_id == world.globex.tenant.id


async def test_copies_of_streams_are_in_the_account(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await switch(gateway, 7)
    contents = gateway.runtime.components.contents
    got = await gateway.ask(STREAMED)
    (whole,) = await kept(gateway, 1)
    assert not whole.is_broken_off
    assert contents._held_bytes == 0
    copy = content_recorder._Kept(contents._hold, b"12345")
    monkeypatch.setattr(content_recorder, "MOST_WAITING_BYTES", 8)
    copy.add(b"67890")
    copy.add(b"1")
    assert (copy.pieces, copy.cut, contents._held_bytes) == ([b"12345"], 6, 5)
    assert got.status == 200


async def test_a_gateway_that_stops_waits_no_longer_than_it_says(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await switch(gateway, 7)
    contents, may_end, calls = gateway.runtime.components.contents, threading.Event(), []
    monkeypatch.setattr(content_recorder, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(content_recorder, "BATCH_ENTRIES", 1)

    def hang(*call: object) -> Written:
        calls.append(call)
        may_end.wait(20)
        return Written()

    monkeypatch.setattr(entries, "write", hang)
    await gateway.ask()
    await gateway.ask()
    await contents.close()
    may_end.set()
    await asyncio.to_thread(contents._thread.shutdown)
    assert len(calls) == 1


async def test_a_stream_that_its_client_leaves_is_marked(gateway: Gateway) -> None:
    contents = gateway.runtime.components.contents

    async def pieces() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    for leaves in (True, False):
        copy = content_recorder._Kept(contents._hold)
        stream = content_recorder._Copied(pieces(), copy)
        await anext(stream)
        if not leaves:
            assert [piece async for piece in stream] == [b"data: 2\n\n"]
        assert copy.has_ended != leaves

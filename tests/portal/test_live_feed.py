"""A topic is read while somebody watches it, by one task, and no longer."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings

from portal.live import feed, topics
from portal.live.feed import Feed
from portal.live.topics import Shown, Topic
from portal.redis_clients import client

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_viewer_who_leaves_while_the_topic_is_read_ends_the_reading() -> None:
    reading, may_end, reads = threading.Event(), threading.Event(), []

    def read() -> Shown:
        reads.append(1)
        reading.set()
        assert may_end.wait(30)
        return Shown(whole="", parts={})

    topic = Topic(name=f"test.{uuid4().hex}", seconds=0.01, read=read)
    try:
        watched = feed.of(topic)
        watched.join()
        watched.join()
        watched.leave()
        await asyncio.to_thread(reading.wait, 30)
        watched.leave()
        may_end.set()
        task = watched._task
        assert task is not None
        await asyncio.wait_for(task, 30)
        assert len(reads) == 1
        assert feed.of(topic) is not watched
        _is_read_again_for_another(feed.of(topic))
    finally:
        client(settings.REDIS_CACHE_URL, 5).delete(feed.lease_key(topic), feed.whole_key(topic))


async def test_a_reading_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RETRY_SECONDS", 0.01)
    again, reads = threading.Event(), []

    def read() -> Shown:
        reads.append(1)
        if len(reads) == 1:
            raise KeyError("a bug")
        again.set()
        return Shown(whole="", parts={})

    topic = Topic(name=f"test.{uuid4().hex}", seconds=0.01, read=read)
    watched = feed.of(topic)
    try:
        watched.join()
        assert await asyncio.to_thread(again.wait, 30)
        watched.leave()
        assert watched._task is not None
        await asyncio.wait_for(watched._task, 30)
    finally:
        client(settings.REDIS_CACHE_URL, 5).delete(feed.lease_key(topic), feed.whole_key(topic))


def _is_read_again_for_another(fresh: Feed) -> None:
    fresh.join()
    assert fresh._task is not None and not fresh._task.done()
    fresh._task.cancel()


def test_a_page_gets_no_reading_that_began_before_it() -> None:
    topic = Topic(name=f"test.{uuid4().hex}", seconds=9, read=lambda: Shown(whole="<b>1</b>", parts={"a": "1"}))
    newest = async_to_sync(feed.newest)
    try:
        before = time.time() - 1
        assert newest(topic, before) == ""
        assert Feed(topic)._turn() == "<b>1</b>"
        assert newest(topic, before) == newest(topic, 0) == "<b>1</b>"
        assert newest(topic, time.time() + 1) == ""
        client(settings.REDIS_CACHE_URL, 5).set(feed.whole_key(topic), "<b>of an earlier release</b>")
        assert newest(topic, 0) == ""
    finally:
        client(settings.REDIS_CACHE_URL, 5).delete(feed.lease_key(topic), feed.whole_key(topic))


def test_an_operator_reads_no_address_that_another_ones_browser_named() -> None:
    own, other = (topics.usage_of_all("24h", "", f"https://{host}/v1") for host in ("hearth.example", "evil.example"))
    assert feed.group(own) != feed.group(other) and feed.whole_key(own) != feed.whole_key(other)

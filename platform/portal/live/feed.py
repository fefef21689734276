"""Read a topic in one process and send what changed to the viewers in all.

A process with viewers of a topic asks Redis in each turn for the topic's lease. The one that has it reads, stores the
whole for viewers that come later, and sends the changes through the channel layer. A holder that dies is followed by
another after LEASE_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from redis.exceptions import RedisError

from portal.live.topics import Shown, Topic
from portal.redis_clients import client

LEASE_SECONDS = 3.0
#: How long the whole of a topic is kept without a viewer.
KEPT_SECONDS = 60
#: After an error of PostgreSQL or Redis.
RETRY_SECONDS = 5.0
#: The pause after a reading, as a multiple of the processor time that the reading took.
PAUSE_FACTOR = 3
#: The type of a message of the channel layer: Channels calls the consumer's method of that name.
CHANGED = "changed"

#: Takes or extends a lease: KEYS[1] lease, ARGV[1] holder, ARGV[2] milliseconds.
_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

#: Readings run one after another in a thread of their own. In the one that sockets share, a socket that connects would
#: wait for the readings of all topics, and several times.
_READING = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Feed:
    """One topic in this process: its viewers' number and, while there is one, the task that reads."""

    topic: Topic
    holder: str = field(default_factory=lambda: uuid4().hex)
    viewers: int = 0
    _task: asyncio.Task[None] | None = None
    _shown: Shown | None = None

    def join(self) -> None:
        """Count a viewer; the first one starts the reading."""
        self.viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def leave(self) -> None:
        """Count a viewer less. Without viewers the next turn is the end.

        The task is not cancelled: asgiref may lose the cancellation of a turn that runs in its thread, and the task
        would go on, with the lease, for nobody.
        """
        self.viewers -= 1

    async def _run(self) -> None:
        layer = get_channel_layer()
        while self.viewers:
            started = time.monotonic()
            try:
                html, spent = await sync_to_async(self._timed_turn, thread_sensitive=False, executor=_READING)()
                if html:
                    await layer.group_send(group(self.topic), {"type": CHANGED, "html": html})
                pause = max(self.topic.seconds, (1 + PAUSE_FACTOR) * spent)
            except Exception as error:  # whatever it is, its viewers are still there in the next turn
                is_known = isinstance(error, DatabaseError | RedisError | OSError)
                log.warning(
                    "cannot read what the live page %s shows: %s", self.topic.name, error, exc_info=not is_known
                )
                self._shown, pause = None, RETRY_SECONDS
            await asyncio.sleep(max(pause - (time.monotonic() - started), pause / 2))
        _feeds.pop(self.topic.name, None)

    def _timed_turn(self) -> tuple[str, float]:
        """Return the HTML to send, and the processor time of the reading in seconds."""
        began = time.thread_time()
        html = self._turn()
        return html, time.thread_time() - began

    def _turn(self) -> str:
        """Read the topic if this process has the lease. Returns the HTML to send; empty if there is none."""
        close_old_connections()
        redis = client(settings.REDIS_CACHE_URL, settings.REDIS_TIMEOUT_SECONDS)
        lease_ms = int((LEASE_SECONDS + self.topic.seconds) * 1000)
        if not redis.eval(_LEASE, 1, lease_key(self.topic), self.holder, lease_ms):
            self._shown = None
            return ""
        read_at, shown = time.time(), self.topic.read()
        html = shown.since(self._shown)
        if html or self._shown is None:
            redis.set(whole_key(self.topic), f"{read_at:.3f}\n{shown.whole}", ex=KEPT_SECONDS)
        else:
            redis.expire(whole_key(self.topic), KEPT_SECONDS)
        self._shown = shown
        return html


def group(topic: Topic) -> str:
    """Return the name of the group of the topic's viewers in the channel layer."""
    return f"live.{topic.name}"


def lease_key(topic: Topic) -> str:
    """Return the key in Redis of the process that reads the topic."""
    return f"hearth.live.{topic.name}.lease"


def whole_key(topic: Topic) -> str:
    """Return the key in Redis of the topic's newest whole HTML, after a line with the Unix time of its reading."""
    return f"hearth.live.{topic.name}.whole"


_feeds: dict[str, Feed] = {}


def of(topic: Topic) -> Feed:
    """Return this process's feed of the topic."""
    return _feeds.setdefault(topic.name, Feed(topic))


@sync_to_async
def newest(topic: Topic, drawn_at: float) -> str:
    """Return the topic's newest whole HTML; empty if nobody has read it since the Unix time at which a page began.

    An earlier reading would take back, until the next one, what the page shows of a change that its reader just made.
    """
    found = client(settings.REDIS_CACHE_URL, settings.REDIS_TIMEOUT_SECONDS).get(whole_key(topic))
    read_at, _, html = found.decode().partition("\n") if isinstance(found, bytes) else ("0", "", "")
    try:
        return html if float(read_at) > drawn_at else ""
    except ValueError:  # of a portal of an earlier release
        return ""

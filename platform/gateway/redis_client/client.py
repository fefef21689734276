"""Talk to Redis in turns: whatever requests ask for in one turn of the event loop travels in one write.

One connection then serves many requests, at a fraction of what a call of its own would cost each. Commands keep their
order, so a value is read after it was set even when nobody waited for the setting.

Redis may be slow, paused or gone. A command that is not answered within its time fails, and with it everything that
was asked after it; the connection is dropped, so that a late reply reaches nobody. After FAILURES_TO_OPEN failures in a
row Redis is left alone for OPEN_SECONDS: commands fail at once. Then one is let through to try.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from gateway import metrics
from gateway.redis_client.connection import (
    Argument,
    RedisAddress,
    RedisConnection,
    RedisFailed,
    RedisNotSent,
    RedisReplyError,
    RedisUnavailable,
    Script,
    pack,
)

log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 5
OPEN_SECONDS = 1.0
#: Between two looks at a command that is late, so that the loop has read in between what was there already.
LEAST_LOOK_SECONDS = 0.001

ReplyFuture = asyncio.Future[Any]


class _Pending(msgspec.Struct, eq=False):
    """A command on its way. ``heard`` is told the reply or what went wrong; None: nobody waits. ``script``: what to
    teach Redis if it does not know it.
    """

    due: float
    heard: Callable[[Any], None] | None
    script: tuple[Script, tuple[Argument, ...]] | None
    failed: Callable[[], None] | None = None


class RedisClient:
    """One conversation with one Redis. Lives on one event loop; connects when first asked."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        """Raise ValueError for an address that cannot be read."""
        self._address = RedisAddress.of(url)
        #: Of one command, from when it is asked.
        self.timeout_seconds = timeout_seconds
        self._scripts: tuple[Script, ...] = ()
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[_Pending] = deque()
        self._late: _Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._alone_until = 0.0
        #: Nothing is asked any more.
        self.closed = False

    def register(self, *scripts: Script) -> None:
        """Have Redis know these whenever a connection begins, so that a call costs no second question."""
        self._scripts += scripts

    def execute(self, *command: Argument) -> ReplyFuture:
        """Put a command into this turn; the future has its answer, or RedisFailed. It need not be awaited."""
        return self._ask(pack(command), None)

    def eval(self, script: Script, *arguments: Argument) -> ReplyFuture:
        """Do as :meth:`execute` with a script; ``arguments`` begin with the number of keys."""
        return self._ask(pack(("EVALSHA", script.sha, *arguments)), (script, arguments))

    def eval_then(self, script: Script, *arguments: Argument, heard: Callable[[Any], None]) -> None:
        """Do as :meth:`eval`, and call ``heard`` with the reply or a RedisFailed: cheaper than a future.

        That may be before this returns; what it raises is logged.
        """
        if not self._put(pack(("EVALSHA", script.sha, *arguments)), heard, (script, arguments)):
            _tell(heard, _not_asked())

    def fire(self, *command: Argument) -> None:
        """Put a command into this turn that nobody waits for. A failure is dropped."""
        self._put(pack(command), None, None)

    def fire_script(self, script: Script, *arguments: Argument, failed: Callable[[], None] | None = None) -> None:
        """Do as :meth:`fire` with a script; ``arguments`` begin with the number of keys.

        ``failed`` is called if Redis may not have run it: cheaper than a future, for what seldom fails.
        """
        packed = pack(("EVALSHA", script.sha, *arguments))
        if not self._put(packed, None, (script, arguments), failed) and failed is not None:
            failed()

    @property
    def breaker_open(self) -> bool:
        """True while Redis has failed so often that it is not asked."""
        return self._failures >= FAILURES_TO_OPEN and time.monotonic() < self._alone_until

    @property
    def failing(self) -> bool:
        """True from a failure until Redis answers again."""
        return self._failures > 0

    async def close(self) -> None:
        """Wait for what was asked, each command for its time at most, then close the connection."""
        if self._waiting:
            with contextlib.suppress(RedisFailed):
                await self.execute("PING")  # answered last
        self.closed = True
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)  # the loop closes what was aborted in its next turn

    def _ask(self, packed: bytes, script: tuple[Script, tuple[Argument, ...]] | None) -> ReplyFuture:
        answer: ReplyFuture = asyncio.get_running_loop().create_future()
        if not self._put(packed, partial(_give, answer), script):
            _give(answer, _not_asked())
        return answer

    def _put(
        self,
        packed: bytes,
        heard: Callable[[Any], None] | None,
        script: tuple[Script, tuple[Argument, ...]] | None,
        failed: Callable[[], None] | None = None,
    ) -> bool:
        """Say whether the command goes out. After the pause one does; what comes of it decides about the others."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        if self.closed or (self._failures >= FAILURES_TO_OPEN and (now < self._alone_until or self._waiting)):
            return False
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(packed)
        self._waiting.append(_Pending(now + self.timeout_seconds, heard, script, failed))
        if self._timer is None:
            self._timer = loop.call_later(self.timeout_seconds / 2, self._look)
        return True

    def _flush(self) -> None:
        if not self._unsent:  # it failed before it was sent
            return
        if self._connection is None:
            lessons = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
            self._connection = RedisConnection((*self._address.login, *lessons), self._replied, self._failed)
            self._connecting = asyncio.ensure_future(self._connect(self._connection))
        self._connection.write(self._unsent)
        self._unsent = []

    async def _connect(self, connection: RedisConnection) -> None:
        try:
            await self._address.connect(connection)
        except OSError as error:
            if self._connection is connection:
                self._failed(RedisUnavailable(f"it cannot be reached: {error}"))

    def _replied(self, reply: Any) -> None:
        if not self._waiting:
            self._failed(RedisUnavailable("it answers what nobody asked"))
            return
        asked = self._waiting.popleft()
        self._failures = 0
        if isinstance(reply, RedisReplyError) and asked.script is not None and str(reply).startswith("NOSCRIPT"):
            script, arguments = asked.script  # it was told to forget all; EVAL also teaches it the script
            if not self._put(pack(("EVAL", script.text, *arguments)), asked.heard, None, asked.failed):
                _fail(asked, _not_asked())
        elif asked.heard is not None:
            _tell(asked.heard, reply)
        elif isinstance(reply, RedisReplyError):
            log.warning("Redis refused what nobody waits for: %s", reply)
            if asked.failed is not None:
                asked.failed()

    def _look(self) -> None:
        """Fail what is late. The time is waited for in two halves: a loop that was busy for all of the first sees an
        answer that was there already in the second, instead of calling Redis slow.
        """
        self._timer = None
        if not self._waiting:
            return
        now = time.monotonic()
        oldest = self._waiting[0]
        if oldest is self._late and now >= oldest.due:
            self._failed(RedisUnavailable("it did not answer in time"))
            return
        half_time = oldest.due - self.timeout_seconds / 2
        at = half_time
        if now >= half_time:
            self._late = oldest
            at = max(oldest.due, now + LEAST_LOOK_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(at - now, self._look)

    def _failed(self, error: Exception) -> None:
        """Fail everybody who waits. A connection that Redis closed while nobody asked anything is no failure."""
        self._drop()
        self._late = None
        waiting, self._waiting = self._waiting, deque()
        if not waiting:
            return
        log.warning("Redis failed %s commands: %s", len(waiting), error)
        metrics.REDIS_TURN_FAILURES.inc()
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._alone_until = time.monotonic() + OPEN_SECONDS
            metrics.REDIS_BREAKER_OPENS.inc()
        for asked in waiting:
            _fail(asked, error)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._unsent = []
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if connection is not None:
            connection.drop()


def _fail(asked: _Pending, error: Exception) -> None:
    if asked.heard is not None:
        _tell(asked.heard, error)
    elif asked.failed is not None:
        asked.failed()


def _tell(heard: Callable[[Any], None], reply: Any) -> None:
    """Tell one; what it makes of it is nobody else's concern, whose replies come over the same connection."""
    try:
        heard(reply)
    except Exception:
        log.exception("what Redis answered could not be taken in")


def _not_asked() -> RedisNotSent:
    return RedisNotSent("Redis failed a moment ago and is left alone")


def _give(waiting: ReplyFuture, answer: Any) -> None:
    if waiting.done():  # its request was cancelled
        return
    if isinstance(answer, Exception):
        # one of its own for each: an exception that many raise collects the stacks of all
        waiting.set_exception(type(answer)(str(answer)))
        waiting.exception()  # taken note of: an answer that nobody awaits is no error to be logged
    else:
        waiting.set_result(answer)

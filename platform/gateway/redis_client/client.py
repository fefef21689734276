"""A Redis client that pipelines: all commands of one turn of the event loop are sent in one write.

One connection serves many requests, at a fraction of the cost of one call each. Commands keep their order, so a value
can be read after it was set, even if the reply to SET was not awaited.

Redis may be slow, paused or down. A command without a reply within its timeout fails, and so does every command after
it; the connection is closed, so that a late reply is not taken for another one's. So is the connection to a server that
has become a replica: the next one leads to the primary, by the Sentinels or the name of the host. After
FAILURES_TO_OPEN failures in a row the breaker opens: commands fail at once for OPEN_SECONDS. Then one command is let
through as a trial.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from gateway import metrics
from gateway.redis_client.connection import (
    UNKNOWN_SERVER,
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
#: Minimum time between two timeout checks of a late command, in which the loop reads replies that have arrived.
MIN_CHECK_SECONDS = 0.001
#: In the reply of a replica to a command that writes, or to a script that does.
READ_ONLY = "READONLY You can't write against a read only replica"
#: Items in one command; Redis serves no other client while it runs one.
BATCH = 200

ReplyFuture = asyncio.Future[Any]
T = TypeVar("T")


class _Pending(msgspec.Struct, eq=False):
    """A command without a reply yet. ``on_reply`` gets the reply or the error; None if no caller waits.

    ``script`` is sent in full if Redis does not have it. ``failed`` is called if Redis may not have run the command.
    """

    due: float
    on_reply: Callable[[Any], None] | None
    script: tuple[Script, tuple[Argument, ...]] | None
    failed: Callable[[], None] | None = None


class RedisClient:
    """A connection to one Redis. Lives on one event loop; connects with the first command."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        """Raise ValueError for an invalid URL."""
        self._address = RedisAddress.of(url)
        if self._address.primary is not None:
            self._address.primary.on_change = self._moved
        #: For one command, from the call.
        self.timeout_seconds = timeout_seconds
        self._scripts: tuple[Script, ...] = ()
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[_Pending] = deque()
        self._late: _Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._open_until = 0.0
        #: No further command is sent.
        self.closed = False
        #: How many connections have ended. A command gets a reply only from the connection that was current when it was
        #: sent: the number is the same before the command and after its reply if both had one connection.
        self.ended_connections = 0

    def register(self, *scripts: Script) -> None:
        """Load these scripts on every new connection, so that EVALSHA succeeds at once."""
        self._scripts += scripts

    def execute(self, *command: Argument) -> ReplyFuture:
        """Send a command; the future gets the reply, or RedisFailed. It need not be awaited."""
        return self._send(pack(command), None)

    def eval(self, script: Script, *arguments: Argument) -> ReplyFuture:
        """Do as :meth:`execute` with a script; ``arguments`` begin with the number of keys."""
        return self._send(pack(("EVALSHA", script.sha, *arguments)), (script, arguments))

    def eval_then(self, script: Script, *arguments: Argument, on_reply: Callable[[Any], None]) -> None:
        """Do as :meth:`eval`, and call ``on_reply`` with the reply or a RedisFailed: cheaper than a future.

        The call may happen before this returns. Exceptions of ``on_reply`` are logged.
        """
        if not self._put(pack(("EVALSHA", script.sha, *arguments)), on_reply, (script, arguments)):
            _call(on_reply, _not_sent())

    def fire(self, *command: Argument) -> None:
        """Send a command without waiting for its reply; failures are ignored."""
        self._put(pack(command), None, None)

    def fire_script(self, script: Script, *arguments: Argument, failed: Callable[[], None] | None = None) -> None:
        """Do as :meth:`fire` with a script; ``arguments`` begin with the number of keys.

        ``failed`` is called if Redis may not have run the script: cheaper than a future.
        """
        packed = pack(("EVALSHA", script.sha, *arguments))
        if not self._put(packed, None, (script, arguments), failed) and failed is not None:
            failed()

    @property
    def server(self) -> bytes:
        """Return the run id of the server that is connected; empty if it does not say it, ``?`` if it has not yet."""
        return UNKNOWN_SERVER if self._connection is None else self._connection.server

    @property
    def breaker_open(self) -> bool:
        """True while commands fail at once because Redis has failed repeatedly."""
        return self._failures >= FAILURES_TO_OPEN and time.monotonic() < self._open_until

    @property
    def failing(self) -> bool:
        """True from a failure until the next reply."""
        return self._failures > 0

    async def close(self) -> None:
        """Wait for open commands, each for its timeout at most, then close the connection."""
        if self._waiting:
            with contextlib.suppress(RedisFailed):
                await self.execute("PING")  # its reply comes last
        self.closed = True
        if self._address.primary is not None:
            await self._address.primary.close()
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)  # the loop closes aborted transports in its next turn

    def _send(self, packed: bytes, script: tuple[Script, tuple[Argument, ...]] | None) -> ReplyFuture:
        future: ReplyFuture = asyncio.get_running_loop().create_future()
        if not self._put(packed, partial(_resolve, future), script):
            _resolve(future, _not_sent())
        return future

    def _put(
        self,
        packed: bytes,
        on_reply: Callable[[Any], None] | None,
        script: tuple[Script, tuple[Argument, ...]] | None,
        failed: Callable[[], None] | None = None,
    ) -> bool:
        """Queue a command; return False if the breaker is open. After OPEN_SECONDS one trial command is let through."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        if self.closed or (self._failures >= FAILURES_TO_OPEN and (now < self._open_until or self._waiting)):
            return False
        if not self._unsent:
            loop.call_soon(self._flush)
        self._unsent.append(packed)
        self._waiting.append(_Pending(now + self.timeout_seconds, on_reply, script, failed))
        if self._timer is None:
            self._timer = loop.call_later(self.timeout_seconds / 2, self._check_timeout)
        return True

    def _flush(self) -> None:
        if not self._unsent:  # the commands failed before they were sent
            return
        if self._connection is None:
            scripts = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
            opening = (*self._address.login, ("INFO", "server"), *scripts)
            self._connection = RedisConnection(opening, self._on_reply, self._failed)
            self._connecting = asyncio.ensure_future(self._connect(self._connection))
        self._connection.write(self._unsent)
        self._unsent = []

    async def _connect(self, connection: RedisConnection) -> None:
        try:
            await self._address.connect(connection)
        except OSError as error:
            if self._connection is connection:
                self._failed(RedisUnavailable(f"cannot connect: {error}"))

    def _on_reply(self, reply: Any) -> None:
        if not self._waiting:
            self._failed(RedisUnavailable("a reply without a command"))
            return
        if isinstance(reply, RedisReplyError) and READ_ONLY in str(reply):
            self._failed(RedisUnavailable("the server is no longer the primary"))
            return
        pending = self._waiting.popleft()
        self._failures = 0
        if isinstance(reply, RedisReplyError) and pending.script is not None and str(reply).startswith("NOSCRIPT"):
            script, arguments = pending.script  # SCRIPT FLUSH was run; EVAL also loads the script
            if not self._put(pack(("EVAL", script.text, *arguments)), pending.on_reply, None, pending.failed):
                _fail(pending, _not_sent())
        elif pending.on_reply is not None:
            _call(pending.on_reply, reply)
        elif isinstance(reply, RedisReplyError):
            log.warning("Redis rejected a command: %s", reply)
            if pending.failed is not None:
                pending.failed()

    def _check_timeout(self) -> None:
        """Fail late commands. The timeout has two halves: a loop that was busy for all of the first reads replies that
        have arrived in the second, instead of blaming Redis.
        """
        self._timer = None
        if not self._waiting:
            return
        now = time.monotonic()
        oldest = self._waiting[0]
        if oldest is self._late and now >= oldest.due:
            self._failed(RedisUnavailable("no reply in time"))
            return
        half_time = oldest.due - self.timeout_seconds / 2
        at = half_time
        if now >= half_time:
            self._late = oldest
            at = max(oldest.due, now + MIN_CHECK_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(at - now, self._check_timeout)

    def _failed(self, error: Exception) -> None:
        """Fail all open commands. A connection that Redis closes while no command is open is no failure."""
        self._drop()
        self._late = None
        waiting, self._waiting = self._waiting, deque()
        if not waiting:
            return
        log.warning("%s Redis commands failed: %s", len(waiting), error)
        metrics.REDIS_FAILURES.inc()
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._open_until = time.monotonic() + OPEN_SECONDS
            metrics.REDIS_BREAKER_OPENS.inc()
        for pending in waiting:
            _fail(pending, error)

    def _moved(self) -> None:
        """Leave a server that is no longer the primary, whether or not it still answers."""
        if self._connection is not None:
            self._failed(RedisUnavailable("the Sentinels have chosen another primary"))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._unsent = []
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if connection is not None:
            self.ended_connections += 1
            connection.drop()


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items, BATCH at a time."""
    left = iter(items)
    while batch := list(islice(left, BATCH)):
        yield batch


def _fail(pending: _Pending, error: Exception) -> None:
    if pending.on_reply is not None:
        _call(pending.on_reply, error)
    elif pending.failed is not None:
        pending.failed()


def _call(on_reply: Callable[[Any], None], reply: Any) -> None:
    """Call ``on_reply``; its exceptions must not affect other replies of the same connection."""
    try:
        on_reply(reply)
    except Exception:
        log.exception("a reply of Redis could not be processed")


def _not_sent() -> RedisNotSent:
    return RedisNotSent("the breaker is open after repeated failures")


def _resolve(future: ReplyFuture, reply: Any) -> None:
    if future.done():  # its request was cancelled
        return
    if isinstance(reply, Exception):
        # A new exception for each: one that many raise collects all their tracebacks.
        future.set_exception(type(reply)(str(reply)))
        future.exception()  # marked as retrieved: an error that no caller awaits is not logged
    else:
        future.set_result(reply)

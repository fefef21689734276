"""Talk to Redis in turns: whatever requests ask for while one turn is under way travels together in the next.

One pipeline then serves many requests, which costs each a fraction of a round trip of its own. Commands keep their
order, so a value is read after it was set even when nobody waited for the setting.

Redis may be slow, paused or gone. A turn that takes longer than its time fails, and with it everything that waits
behind it, so nobody waits longer than two turns. After FAILURES_TO_OPEN failed turns in a row Redis is left alone for
OPEN_SECONDS; commands fail at once meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from redis.exceptions import RedisError

from gateway import telemetry

log = logging.getLogger(__name__)

FAILURES_TO_OPEN = 5
OPEN_SECONDS = 1.0
#: Commands of one turn; a longer pipeline would delay its first answer for its last.
MAX_COMMANDS = 256
#: What a command's future may raise.
FAILURES = (RedisError, OSError, TimeoutError)

Argument = str | bytes | int
_Waiting = tuple[tuple[Argument, ...], "asyncio.Future[Any]"]


class Turns:
    """One conversation with one Redis. Lives on one event loop."""

    def __init__(self, client: Redis, *, timeout_seconds: float) -> None:
        self._client = client
        self._half_time = timeout_seconds / 2
        self._waiting: list[_Waiting] = []
        self._talking: asyncio.Task[None] | None = None
        self._failures = 0
        self._closed_until = 0.0

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """Put a command into the next turn; the future has its answer, or one of FAILURES.

        A future that nobody awaits is allowed: its failure is dropped.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_seen)
        if self.left_alone:
            answer.set_exception(RedisGone("Redis failed a moment ago and is left alone"))
            return answer
        self._waiting.append((command, answer))
        if self._talking is None:
            self._talking = asyncio.ensure_future(self._talk())
        return answer

    @property
    def left_alone(self) -> bool:
        """True while Redis has failed so often that it is not asked."""
        return time.monotonic() < self._closed_until

    async def close(self) -> None:
        """Let the turn under way end, then close the connection."""
        if self._talking is not None:
            await asyncio.wait({self._talking})
        await self._client.aclose()

    async def _talk(self) -> None:
        try:
            while self._waiting:
                turn, self._waiting = self._waiting[:MAX_COMMANDS], self._waiting[MAX_COMMANDS:]
                try:
                    answers = await self._turn([command for command, _ in turn])
                except Exception as error:
                    # Any exception: what is not answered here is waited for without end.
                    log.warning("Redis failed a turn of %s commands: %r", len(turn), error)
                    self._failed()
                    turn += self._waiting
                    self._waiting = []
                    failure = error if isinstance(error, FAILURES) else RedisGone(f"not understood: {error}")
                    answers = [failure] * len(turn)
                else:
                    self._failures = 0
                for (_, waiting), answer in zip(turn, answers, strict=True):
                    _give(waiting, answer)
        finally:
            self._talking = None

    async def _turn(self, commands: list[tuple[Argument, ...]]) -> list[Any]:
        """Return the answers in order, a refused command's as an exception. Raises one of FAILURES.

        The time is waited for in two halves: a loop that was busy for all of the first sees an answer that was
        there already in the second, instead of calling Redis slow.
        """
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        talk = asyncio.ensure_future(pipeline.execute(raise_on_error=False))
        try:
            for _ in range(2):
                done, _ = await asyncio.wait({talk}, timeout=self._half_time)
                if done:
                    return talk.result()
            raise TimeoutError
        finally:
            talk.cancel()

    def _failed(self) -> None:
        self._failures += 1
        telemetry.REDIS_TURN_FAILURES.inc()
        if self._failures >= FAILURES_TO_OPEN:
            self._closed_until = time.monotonic() + OPEN_SECONDS
            telemetry.REDIS_BREAKER_OPENS.inc()


def _give(waiting: asyncio.Future[Any], answer: Any) -> None:
    if waiting.done():  # its request was cancelled
        return
    if isinstance(answer, Exception):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)


def _seen(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()

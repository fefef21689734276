"""A stream whose reply is still to come: it begins with a comment, and errors come as events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from gateway.errors import GatewayError, internal_error
from gateway.request import Heartbeat, Response

log = logging.getLogger(__name__)

T = TypeVar("T")


async def done_within(work: asyncio.Task[T], seconds: float | None) -> bool:
    """Say whether the work is done within so many seconds (None: any); stop it when whoever waits is stopped."""
    try:
        done, _ = await asyncio.wait({work}, timeout=seconds)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait({work})
        raise
    return bool(done)


class PendingStream(Generic[T]):
    """Begins while ``work`` is not done, and then passes on what ``begin`` makes of its result.

    Whoever sends it calls :meth:`close` at the end, which stops the work or lets go of what it brought.
    """

    def __init__(
        self,
        work: asyncio.Task[T],
        begin: Callable[[T], Response],
        *,
        heartbeat: Heartbeat,
        error_event: Callable[[GatewayError], bytes],
    ) -> None:
        self._work = work
        self._begin = begin
        self._heartbeat = heartbeat
        self._error_event = error_event
        self._begun: Response | None = None
        self._ended: GatewayError | None = None
        work.add_done_callback(_seen)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield a heartbeat at once, then the stream that began or the error; whoever sends it tells the others."""
        try:
            yield self._heartbeat.event()
            await done_within(self._work, None)
            if self._ended is not None and self._work.cancelled():
                raise self._ended
            self._begun = self._begin(self._work.result())
            if self._ended is not None:  # the reply began at the very moment at which it was to end
                self._begun.end_with(self._ended)
        except GatewayError as error:
            yield self._error_event(error)
            return
        except Exception:
            log.exception("a held stream failed before it began")
            yield self._error_event(internal_error())
            return
        assert self._begun.stream is not None
        async for piece in self._begun.stream:
            yield piece

    def end_with(self, error: GatewayError) -> None:
        """Let the stream tell this error as its last event, whether what it waits for has begun or not."""
        if self._begun is not None:
            self._begun.end_with(error)
        else:
            self._ended = error
            self._work.cancel()

    def close(self) -> None:
        """End it for good, however far it came; the second call does nothing."""
        if self._begun is None and self._work.done() and not self._work.cancelled() and not self._work.exception():
            self._begun = self._begin(self._work.result())
        if self._begun is not None:
            self._begun.on_close()
        else:
            self._work.cancel()


def _seen(work: asyncio.Task[T]) -> None:
    """Take note of an error that nobody is left to be told."""
    if not work.cancelled():
        work.exception()

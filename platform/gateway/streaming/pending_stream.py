"""A stream that starts before its reply: it begins with a comment, and sends errors as events."""

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
    """Return whether the work is done within ``seconds`` (None: no limit); cancel it when the waiting task is."""
    try:
        done, _ = await asyncio.wait({work}, timeout=seconds)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait({work})
        raise
    return bool(done)


class PendingStream(Generic[T]):
    """Starts while ``work`` runs, and then passes on the stream that ``begin`` makes of its result.

    The sender calls :meth:`close` at the end, which cancels the work or closes its result.
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
        work.add_done_callback(_retrieve_error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield one heartbeat, then the stream or the error event. The sender adds all further heartbeats."""
        try:
            yield self._heartbeat.event()
            await done_within(self._work, None)
            if self._ended is not None and self._work.cancelled():
                raise self._ended
            self._begun = self._begin(self._work.result())
            if self._ended is not None:  # the reply began at the moment at which the stream was ended
                self._begun.end_with(self._ended)
        except GatewayError as error:
            yield self._error_event(error)
            return
        except Exception:
            log.exception("a waiting stream failed before its reply began")
            yield self._error_event(internal_error())
            return
        assert self._begun.stream is not None
        async for piece in self._begun.stream:
            yield piece

    def end_with(self, error: GatewayError) -> None:
        """End the stream with this error as its last event, before or after its reply began."""
        if self._begun is not None:
            self._begun.end_with(error)
        else:
            self._ended = error
            self._work.cancel()

    def close(self) -> None:
        """End the stream. A second call does nothing."""
        if self._begun is None and self._work.done() and not self._work.cancelled() and not self._work.exception():
            self._begun = self._begin(self._work.result())
        if self._begun is not None:
            self._begun.on_close()
        else:
            self._work.cancel()


def _retrieve_error(work: asyncio.Task[T]) -> None:
    """Retrieve the error of abandoned work, which asyncio would log otherwise."""
    if not work.cancelled():
        work.exception()

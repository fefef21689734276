"""Send an answer to its client: comments while a stream is silent, and no endless wait for a client that reads nothing.

A server's ``send`` waits while its client does not read. Ours does so once 4 MB are on their way, nearly all of them in
the kernel (the process holds 64 KiB and a piece); what comes behind them stays with the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from gateway.request import ClientDisconnect, Heartbeat, Response

log = logging.getLogger(__name__)

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def deliver(send: Send, response: Response, *, timeout_seconds: float, disconnect: ClientDisconnect) -> None:
    """Send the answer and close it, whatever happens on the way.

    A client of a stream that has taken nothing for ``timeout_seconds`` counts as gone. What is left of a request whose
    client is gone runs to its end while others need it, and nothing of it is sent.
    """
    try:
        if response.stream is None:
            length = (b"content-length", str(len(response.body)).encode())
            head = {"type": "http.response.start", "status": response.status, "headers": [*response.headers, length]}
            if not disconnect.happened:
                await send(head)
                await send({"type": "http.response.body", "body": response.body})
            return
        if not disconnect.happened:
            await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await _Stream(send, response.heartbeat, timeout_seconds, disconnect).run(response.stream)
    finally:
        response.on_close()


async def run_on(response: Response, disconnect: ClientDisconnect) -> None:
    """Run what is left of an answer to its end while others need it, send nothing of it, and close it."""
    task = asyncio.current_task()
    assert task is not None
    disconnect.cancel_with(partial(_cancel, task))
    try:
        if disconnect.has_followers and response.stream is not None:
            async for _ in response.stream:
                continue
    finally:
        response.on_close()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class _Stream:
    """One stream on its way. A single timer looks after it, because one for each piece would cost more than sending."""

    def __init__(
        self, send: Send, heartbeat: Heartbeat | None, timeout_seconds: float, disconnect: ClientDisconnect
    ) -> None:
        self._send = send
        self._heartbeat = heartbeat
        self._timeout_seconds = timeout_seconds
        self._disconnect = disconnect
        self._look_seconds = min(timeout_seconds, heartbeat.every_seconds) if heartbeat else timeout_seconds
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        self._task = task
        #: A send that hangs is being broken off, though the request goes on.
        self._breaks = False
        #: Whether something is being sent, and since when that is so, or not.
        self._sending = False
        self._since = self._loop.time()
        self._comment: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._look_seconds, self._look)

    async def run(self, stream: AsyncIterator[bytes]) -> None:
        """Send the pieces as they come, one after the other, and say that there are no more."""
        try:
            async for piece in stream:
                try:
                    if self._comment is not None:
                        await self._comment
                    await self._pass(piece)
                except asyncio.CancelledError as cancelled:
                    self._go_on(cancelled)
            try:
                if self._comment is not None:
                    await self._comment
                await self._pass(b"", more_body=False)
            except asyncio.CancelledError as cancelled:
                self._go_on(cancelled)
        finally:
            self._timer.cancel()
            if self._comment is not None:
                self._comment.cancel()

    def _go_on(self, cancelled: asyncio.CancelledError) -> None:
        """Go on without a client that was given up. Raises a CancelledError that came from anybody else."""
        if not self._breaks or self._task.uncancel():
            raise cancelled
        self._breaks, self._comment = False, None

    async def _pass(self, piece: bytes, *, more_body: bool = True) -> None:
        if self._disconnect.happened:
            return
        self._sending, self._since = True, self._loop.time()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more_body})
        self._sending, self._since = False, self._loop.time()

    def _look(self) -> None:
        """See whether the client, or what it waits for, has been silent for too long."""
        silent_seconds = self._loop.time() - self._since
        again = self._look_seconds
        if self._sending:
            if silent_seconds >= self._timeout_seconds:
                log.info("a client that has read nothing for %.0f s is given up", silent_seconds)
                self._disconnect.signal()
                if self._disconnect.has_followers:
                    self._breaks = True
                    (self._comment or self._task).cancel()
                return
            again = min(again, self._timeout_seconds - silent_seconds)
        elif self._heartbeat is not None:
            if silent_seconds >= self._heartbeat.every_seconds:
                self._comment = self._loop.create_task(self._tell(self._heartbeat))
            else:
                again = min(again, self._heartbeat.every_seconds - silent_seconds)
        self._timer = self._loop.call_later(again, self._look)

    async def _tell(self, heartbeat: Heartbeat) -> None:
        await self._pass(heartbeat.event())
        self._comment = None

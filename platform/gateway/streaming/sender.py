"""Send a response: comments while a stream is silent, and a timeout for a client that does not read.

``send`` waits while the client does not read. The gateway's server starts to wait once 4 MB are unread, nearly all of
them in the kernel (the process buffers 64 KiB and one piece); everything after that stays with the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from gateway.request import ClientDisconnect, Heartbeat, Response

log = logging.getLogger(__name__)

#: Responses are one client's own, so no proxy may keep them, and no browser may take them for a page.
NO_STORE = (b"cache-control", b"no-store")
NO_SNIFF = (b"x-content-type-options", b"nosniff")

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def deliver(send: Send, response: Response, *, timeout_seconds: float, disconnect: ClientDisconnect) -> None:
    """Send the response, and close it however sending ends.

    A client that has read nothing of a stream for ``timeout_seconds`` counts as disconnected. The rest of its response
    runs to the end, unsent, while other requests follow it.
    """
    try:
        if response.stream is None:
            headers = [*response.headers, (b"content-length", str(len(response.body)).encode()), NO_SNIFF]
            if NO_STORE not in headers:  # a stored stream has it already
                headers.append(NO_STORE)
            if not disconnect.happened:
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                await send({"type": "http.response.body", "body": response.body})
            return
        if not disconnect.happened:
            headers = [*response.headers, NO_SNIFF]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await _Stream(send, response.heartbeat, timeout_seconds, disconnect).run(response.stream)
    finally:
        response.on_close()


async def run_on(response: Response, disconnect: ClientDisconnect) -> None:
    """Run the rest of a response to its end, unsent, while other requests follow it, and close it."""
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
    """One stream. A single timer checks it, because a timer for each piece would cost more than sending the piece."""

    def __init__(
        self, send: Send, heartbeat: Heartbeat | None, timeout_seconds: float, disconnect: ClientDisconnect
    ) -> None:
        self._send = send
        self._heartbeat = heartbeat
        self._timeout_seconds = timeout_seconds
        self._disconnect = disconnect
        self._check_seconds = min(timeout_seconds, heartbeat.every_seconds) if heartbeat else timeout_seconds
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "requests are served in tasks"
        self._task = task
        #: A blocked send is being cancelled, while the request continues for its followers.
        self._cancelling_send = False
        #: Whether a send is in progress, and since when that has been true or false.
        self._sending = False
        self._since = self._loop.time()
        self._comment: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._check_seconds, self._check)

    async def run(self, stream: AsyncIterator[bytes]) -> None:
        """Send the pieces in order, then the end of the response."""
        try:
            async for piece in stream:
                try:
                    if self._comment is not None:
                        await self._comment
                    await self._send_piece(piece)
                except asyncio.CancelledError as cancelled:
                    self._continue_unsent(cancelled)
            try:
                if self._comment is not None:
                    await self._comment
                await self._send_piece(b"", more_body=False)
            except asyncio.CancelledError as cancelled:
                self._continue_unsent(cancelled)
        finally:
            self._timer.cancel()
            if self._comment is not None:
                self._comment.cancel()

    def _continue_unsent(self, cancelled: asyncio.CancelledError) -> None:
        """Continue without the client after its send timed out. Re-raises any other cancellation."""
        if not self._cancelling_send or self._task.uncancel():
            raise cancelled
        self._cancelling_send, self._comment = False, None

    async def _send_piece(self, piece: bytes, *, more_body: bool = True) -> None:
        if self._disconnect.happened:
            return
        self._sending, self._since = True, self._loop.time()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more_body})
        self._sending, self._since = False, self._loop.time()

    def _check(self) -> None:
        """Send a comment if the stream is silent; give up on a client that has read nothing for too long."""
        elapsed_seconds = self._loop.time() - self._since
        again = self._check_seconds
        if self._sending:
            if elapsed_seconds >= self._timeout_seconds:
                log.info("a client read nothing for %.0f s and was disconnected", elapsed_seconds)
                self._disconnect.signal()
                if self._disconnect.has_followers:
                    self._cancelling_send = True
                    (self._comment or self._task).cancel()
                return
            again = min(again, self._timeout_seconds - elapsed_seconds)
        elif self._heartbeat is not None:
            if elapsed_seconds >= self._heartbeat.every_seconds:
                self._comment = self._loop.create_task(self._send_comment(self._heartbeat))
            else:
                again = min(again, self._heartbeat.every_seconds - elapsed_seconds)
        self._timer = self._loop.call_later(again, self._check)

    async def _send_comment(self, heartbeat: Heartbeat) -> None:
        await self._send_piece(heartbeat.event())
        self._comment = None

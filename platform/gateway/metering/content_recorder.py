"""Record prompts and answers of projects that keep them (``tenants.content``), without getting in a request's way.

What is recorded waits in memory, bounded, until a thread has written it. What cannot be kept is counted and lost: no
request waits for it, or fails because of it. A killed process loses what waits, and never half an entry.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec
from django.db import Error, close_old_connections, connection

from gateway import metrics
from gateway.errors import GatewayError
from gateway.request import Request, RequestContext, Response
from tenants.content import entries
from tenants.content.entries import MOST_BYTES, Content, NewEntry

log = logging.getLogger(__name__)

#: Bytes that wait, of this process; and those of one batch, and how many entries.
MOST_WAITING_BYTES = 32 << 20
BATCH_BYTES = 4 << 20
BATCH_ENTRIES = 500
#: How long entries are collected before they are written.
WRITE_SECONDS = 0.5
#: How long a project's stored bytes are not counted again. What this process adds meanwhile counts at once.
COUNTED_SECONDS = 60.0
#: How long a process that ends waits for its last entries.
CLOSE_SECONDS = 3.0


class ContentRecorder:
    """One process's part. Lives on the running loop; its thread starts with the first entry."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="content-log")
        self._lock = threading.Lock()
        self._waiting: deque[NewEntry] = deque()
        self._waiting_bytes = 0
        self._is_due = False
        #: Stored bytes by project, and until when (time.monotonic()) that is not counted again. The thread's own.
        self._used: dict[UUID, tuple[int, float]] = {}

    async def recorded(self, context: RequestContext, request: Request, work: Awaitable[Response]) -> Response:
        """Return the response of ``work``, and record it once it is sent. Raises what ``work`` raises."""
        try:
            response = await work
        except GatewayError as error:
            self._add(context, request, _Kept(context.timeline.endpoint.error_body(error)), error.status)
            raise
        except asyncio.CancelledError:
            self._add(context, request, _Kept(), 0)
            raise
        if response.stream is None:
            self._add(context, request, _Kept(response.body), response.status)
            return response
        kept = _Kept()
        stream = _Copied(response.stream, kept)
        has_ended = False

        def ended() -> None:
            nonlocal has_ended
            response.on_close()
            if not has_ended:
                has_ended = True
                self._add(context, request, kept, response.status, is_stream=True)

        return msgspec.structs.replace(response, stream=stream, on_close=ended)

    async def close(self) -> None:
        """Write what waits, for at most CLOSE_SECONDS."""
        with self._lock:
            is_idle = not self._waiting
        if not is_idle:
            await asyncio.wait({asyncio.wrap_future(self._thread.submit(self._write))}, timeout=CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _add(
        self, context: RequestContext, request: Request, answer: _Kept, status: int, *, is_stream: bool = False
    ) -> None:
        prompt = request.body[:MOST_BYTES]
        entry = NewEntry(
            request_id=context.timeline.request_id,
            tenant_id=context.caller.tenant_id,
            project_id=context.caller.project_id,
            content=Content(
                prompt=prompt,
                answer=b"".join(answer.pieces),
                status=status,
                is_stream=is_stream,
                prompt_cut=len(request.body) - len(prompt),
                answer_cut=answer.cut,
            ),
        )
        size = _size(entry)
        with self._lock:
            if self._waiting_bytes + size > MOST_WAITING_BYTES:
                metrics.CONTENT_ENTRIES.labels("dropped").inc()
                return
            self._waiting.append(entry)
            self._waiting_bytes += size
            if self._is_due:
                return
            self._is_due = True
        self._loop.call_later(WRITE_SECONDS, self._submit)

    def _submit(self) -> None:
        try:
            self._thread.submit(self._write)
        except RuntimeError:  # the process ends
            metrics.CONTENT_ENTRIES.labels("dropped").inc(len(self._waiting))

    def _write(self) -> None:
        """Write what waits. Runs in the thread."""
        with self._lock:
            self._is_due = False
        while batch := self._next_batch():
            close_old_connections()
            try:
                written = entries.write(batch, self._used_bytes)
            except Error as error:
                log.warning("%d entries of content logs are lost: %s", len(batch), error)
                metrics.CONTENT_ENTRIES.labels("failed").inc(len(batch))
                connection.close()
            else:
                for outcome in ("stored", "full", "refused"):
                    metrics.CONTENT_ENTRIES.labels(outcome).inc(getattr(written, outcome))
                self._count(batch)
                close_old_connections()

    def _next_batch(self) -> list[NewEntry]:
        batch: list[NewEntry] = []
        size = 0
        with self._lock:
            while self._waiting and size < BATCH_BYTES and len(batch) < BATCH_ENTRIES:
                batch.append(self._waiting.popleft())
                size += _size(batch[-1])
            self._waiting_bytes -= size
        return batch

    def _used_bytes(self, project_id: UUID) -> int:
        used, until = self._used.get(project_id, (0, 0.0))
        if time.monotonic() >= until:
            used = entries.stored_bytes(project_id)
            self._used[project_id] = used, time.monotonic() + COUNTED_SECONDS
        return used

    def _count(self, batch: list[NewEntry]) -> None:
        """Count what was written, at most: as it was before it was compressed."""
        for each in batch:
            used, until = self._used.get(each.project_id, (0, 0.0))
            self._used[each.project_id] = used + _size(each), until


def _size(entry: NewEntry) -> int:
    return len(entry.content.prompt) + len(entry.content.answer)


class _Kept:
    """The beginning of an answer, up to MOST_BYTES, and how many bytes were cut."""

    __slots__ = ("cut", "pieces", "size")

    def __init__(self, whole: bytes = b"") -> None:
        self.pieces: list[bytes] = []
        self.size = self.cut = 0
        self.add(whole)

    def add(self, piece: bytes) -> None:
        room = MOST_BYTES - self.size
        if len(piece) > room:
            self.cut += len(piece) - room
            piece = piece[:room]
        if piece:
            self.pieces.append(piece)
            self.size += len(piece)


class _Copied:
    """A stream whose pieces are kept as they pass."""

    def __init__(self, stream: AsyncIterator[bytes], kept: _Kept) -> None:
        self._next: Callable[[], Awaitable[bytes]] = stream.__anext__
        self._kept = kept

    def __aiter__(self) -> _Copied:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._next()
        self._kept.add(piece)
        return piece

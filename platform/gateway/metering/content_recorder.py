"""Record prompts and answers of projects that keep them (``tenants.content``), without getting in a request's way.

What is recorded waits in memory, bounded, until a thread has written it. What cannot be kept is counted and lost: no
request waits for it, or fails because of it. A killed process loses what waits, and never half an entry.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec
from django.db import close_old_connections, connection

from gateway import metrics
from gateway.errors import GatewayError
from gateway.request import Request, RequestContext, Response
from tenants.content import entries
from tenants.content.entries import MOST_BYTES, Content, NewEntry

log = logging.getLogger(__name__)

#: Bytes that wait, of this process, with copies of running streams; and those of one batch, and how many entries.
MOST_WAITING_BYTES = 32 << 20
BATCH_BYTES = 4 << 20
BATCH_ENTRIES = 500
#: What one that waits takes besides its bodies.
ENTRY_BYTES = 1024
#: How long entries are collected before they are written.
WRITE_SECONDS = 0.5
#: How long a process that ends waits for its last entries.
CLOSE_SECONDS = 3.0


class ContentRecorder:
    """One process's part. Lives on the running loop; its thread starts with the first entry."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="content-log")
        self._lock = threading.Lock()
        self._waiting: deque[NewEntry] = deque()
        #: Of what waits, and of running streams.
        self._held_bytes = 0
        self._is_due = False
        self._is_closed = False

    async def recorded(self, context: RequestContext, request: Request, work: Awaitable[Response]) -> Response:
        """Return the response of ``work``, and record it once it is sent. Raises what ``work`` raises."""
        try:
            response = await work
        except GatewayError as error:
            self._add(context, request, _Kept(self._hold, context.timeline.endpoint.error_body(error)), error.status)
            raise
        except asyncio.CancelledError:
            self._add(context, request, _Kept(self._hold), 0)
            raise
        if response.stream is None:
            self._add(context, request, _Kept(self._hold, response.body), response.status)
            return response
        kept = _Kept(self._hold)
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
        if self._is_closed:
            return
        with self._lock:
            is_idle = not self._waiting
        if not is_idle:
            await asyncio.wait({asyncio.wrap_future(self._thread.submit(self._write))}, timeout=CLOSE_SECONDS)
        metrics.CONTENT_ENTRIES.labels("dropped").inc(len(self._waiting))
        self._is_closed = True  # the thread ends with what it writes now, and the process need not wait for the rest
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _add(
        self, context: RequestContext, request: Request, answer: _Kept, status: int, *, is_stream: bool = False
    ) -> None:
        prompt = request.body[:MOST_BYTES]
        if not self._hold(ENTRY_BYTES + len(prompt)):
            self._hold(-answer.size)
            metrics.CONTENT_ENTRIES.labels("dropped").inc()
            return
        entry = NewEntry(
            request_id=context.timeline.request_id,
            tenant_id=context.caller.tenant_id,
            project_id=context.caller.project_id,
            end_user=context.call.end_user,
            content=Content(
                prompt=prompt,
                answer=b"".join(answer.pieces),
                status=status,
                is_stream=is_stream,
                prompt_cut=len(request.body) - len(prompt),
                answer_cut=answer.cut,
                is_broken_off=is_stream and not answer.has_ended,
            ),
        )
        with self._lock:
            self._waiting.append(entry)
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
        while not self._is_closed and (batch := self._next_batch()):
            close_old_connections()
            by_project: dict[UUID, list[NewEntry]] = defaultdict(list)
            for each in batch:
                by_project[each.project_id].append(each)
            for project_id, of_project in by_project.items():
                self._write_project(project_id, of_project)
            close_old_connections()

    def _write_project(self, project_id: UUID, batch: list[NewEntry]) -> None:
        try:
            written = entries.write(project_id, batch)
        except Exception as error:  # whatever it is, the other projects' entries are written
            log.warning("%d entries of the content log of project %s are lost: %r", len(batch), project_id, error)
            metrics.CONTENT_ENTRIES.labels("failed").inc(len(batch))
            connection.close()
        else:
            for outcome in ("stored", "full", "refused"):
                metrics.CONTENT_ENTRIES.labels(outcome).inc(getattr(written, outcome))

    def _next_batch(self) -> list[NewEntry]:
        batch: list[NewEntry] = []
        size = 0
        with self._lock:
            while self._waiting and size < BATCH_BYTES and len(batch) < BATCH_ENTRIES:
                batch.append(self._waiting.popleft())
                size += _size(batch[-1])
            self._held_bytes -= size
        return batch

    def _hold(self, size: int) -> bool:
        """Return whether there is room for so many bytes more, and count them if so; fewer than 0 give some back."""
        with self._lock:
            if size > 0 and self._held_bytes + size > MOST_WAITING_BYTES:
                return False
            self._held_bytes += size
            return True


def _size(entry: NewEntry) -> int:
    return ENTRY_BYTES + len(entry.content.prompt) + len(entry.content.answer)


class _Kept:
    """The beginning of an answer, up to MOST_BYTES, and how many bytes were cut."""

    __slots__ = ("_hold", "cut", "has_ended", "pieces", "size")

    def __init__(self, hold: Callable[[int], bool], whole: bytes = b"") -> None:
        self._hold = hold
        self.pieces: list[bytes] = []
        self.size = self.cut = 0
        #: Of a stream: it came to its own end.
        self.has_ended = False
        self.add(whole)

    def add(self, piece: bytes) -> None:
        kept = b"" if self.cut else piece[: MOST_BYTES - self.size]
        if kept and not self._hold(len(kept)):
            kept = b""
        self.cut += len(piece) - len(kept)
        if kept:
            self.pieces.append(kept)
            self.size += len(kept)


class _Copied:
    """A stream whose pieces are kept as they pass."""

    def __init__(self, stream: AsyncIterator[bytes], kept: _Kept) -> None:
        self._next: Callable[[], Awaitable[bytes]] = stream.__anext__
        self._kept = kept

    def __aiter__(self) -> _Copied:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._next()
        except StopAsyncIteration:
            self._kept.has_ended = True
            raise
        self._kept.add(piece)
        return piece

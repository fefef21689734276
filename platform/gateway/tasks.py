"""Deferred requests, run by the ``inference`` role through the same journey as all others."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID

from celery import shared_task

from gateway import runtime
from gateway.deferred import TASK, enqueue
from gateway.messages import Incoming, Outgoing
from gateway.pipeline import ENDPOINTS
from workers import deferred


class _Loop:
    """One event loop in a thread, with one runtime, for all the tasks of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: runtime.Runtime | None = None

    def run(self, request_id: UUID, public_id: str, endpoint: str, incoming: Incoming) -> Outgoing:
        """Run one request to its end; blocks the calling thread."""
        loop = self._started()
        work = self._answer(request_id, public_id, endpoint, incoming)
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="journey", daemon=True).start()
            return self._loop

    async def _answer(self, request_id: UUID, public_id: str, endpoint: str, incoming: Incoming) -> Outgoing:
        if self._runtime is None:
            self._runtime = runtime.start("inference")
            await self._runtime.feed.ready()
        return await self._runtime.pipeline.run_deferred(request_id, public_id, ENDPOINTS[endpoint], incoming)


_loop = _Loop()


@shared_task(name=TASK)
def run_deferred(request_id: str) -> None:
    """Answer one deferred request. Idempotent: only the first delivery finds it still queued."""
    claimed = deferred.claim(UUID(request_id))
    if claimed is None:
        return
    kept = claimed.submission
    incoming = Incoming(method="POST", path=kept.endpoint, headers=kept.headers, body=kept.body)
    outgoing = _loop.run(claimed.id, claimed.key_public_id, kept.endpoint, incoming)
    headers = {name.decode(): value.decode() for name, value in outgoing.headers}
    deferred.finish(claimed.id, outgoing.status, headers, outgoing.body)


@shared_task(name="gateway.tasks.tend_deferred")
def tend_deferred() -> None:
    """Send what was lost again and erase what has expired. Idempotent; beat calls it each minute."""
    deferred.requeue_lost(enqueue=enqueue)
    deferred.expire()

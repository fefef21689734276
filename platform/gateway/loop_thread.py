"""The pipeline on an event loop in a thread, for callers on threads or on short-lived loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from gateway.pipeline.handler import Pipeline
from gateway.pipeline.runtime import Runtime, start

T = TypeVar("T")


class EventLoopThread:
    """One thread, event loop and runtime for a process, started with the first request. Thread-safe."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runtime: Runtime | None = None

    def run_on_pipeline(self, work: Callable[[Pipeline], Awaitable[T]]) -> Future[T]:
        """Start ``work`` on the pipeline once the first snapshot is loaded. Cancelling the future cancels it."""
        return self.run(lambda: self._with_pipeline(work))

    def run(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start ``work`` on the loop."""

        async def begin() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(begin(), self._started())

    def close(self) -> None:
        """Close the runtime and end the thread; the next request starts both again."""
        with self._lock:
            loop, runtime, self._loop, self._runtime = self._loop, self._runtime, None, None
        if loop is None:
            return
        if runtime is not None:
            asyncio.run_coroutine_threadsafe(runtime.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)

    async def _with_pipeline(self, work: Callable[[Pipeline], Awaitable[T]]) -> T:
        if self._runtime is None:
            self._runtime = start(self._role)
        runtime = self._runtime
        await runtime.feed.ready()
        return await work(runtime.pipeline)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_forever, args=[self._loop], name=f"pipeline-{self._role}", daemon=True
                ).start()
            return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()

"""A replica that serves while others start beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.errors import BenchError
from workers.engines import trial
from workers.engines.driver import EngineSpec

#: Of one answer; the next is asked for when it has ended.
ANSWER_TOKENS = 256


class Neighbour:
    """Streams from one engine without a pause, on one connection, and counts its tokens."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._tokens = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Keep it busy, from its first token on, for as long as the block lasts."""
        self._thread.start()
        while self._tokens == 0 and self._thread.is_alive():
            time.sleep(0.05)
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join(60)

    @contextmanager
    def counting(self) -> Iterator[list[float]]:
        """Give a list that holds its tokens per second over the block, once that has ended. Raises BenchError."""
        before, began = self._tokens, time.monotonic()
        rate: list[float] = []
        yield rate
        if not self._thread.is_alive():
            raise BenchError("The serving replica stopped answering.")
        rate.append((self._tokens - before) / (time.monotonic() - began))

    def _run(self) -> None:
        while not self._stopped.is_set():
            for chunk in trial.ask(self._spec, max_tokens=ANSWER_TOKENS):
                self._tokens += len(chunk["choices"])
                if self._stopped.is_set():
                    return

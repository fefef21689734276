"""Requests without a pause, whole and streamed, while something changes; and which of them failed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from uuid import uuid4

from workers.engines.errors import TrialFailed

#: Sends a completion, with seconds to wait at most, and returns the body of the answer. Raises TrialFailed or OSError.
Complete = Callable[[Mapping[str, object], float], str]

#: Half of them stream.
CLIENTS = 4
TOKENS = 32
#: Between two requests of a client: on a CPU a start takes longer the more is asked meanwhile.
PAUSE_SECONDS = 0.25
#: A request that finds no replica waits for the next one.
ANSWER_SECONDS = 1800.0
#: How long the last requests may take once nothing changes any more.
REST_SECONDS = 60.0


@dataclass(slots=True)
class SteadyLoad:
    """What was asked so far. ``failures`` are sentences."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    unfinished: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, complete: Complete, *, streamed: bool) -> None:
        """Ask until the load is over."""
        while not self._over.is_set():
            problem = _ask(complete, streamed=streamed)
            with self._lock:
                self.answered += 1
                if problem:
                    self.failures.append(problem)
            time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        """Begin no further request."""
        self._over.set()


@contextmanager
def steady_load(complete: Complete, *, deadline: float = math.inf) -> Iterator[SteadyLoad]:
    """Keep asking for as long as the block lasts, and wait for the last answers."""
    load = SteadyLoad()
    clients = [
        threading.Thread(target=load.run, args=(complete,), kwargs={"streamed": number % 2 == 0}, daemon=True)
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        yield load
    finally:
        load.end()
        ends = min(time.monotonic() + REST_SECONDS, deadline)
        for client in clients:
            client.join(max(0.0, ends - time.monotonic()))
        load.unfinished = sum(client.is_alive() for client in clients)


def _ask(complete: Complete, *, streamed: bool) -> str:
    """Send a prompt that no cache has; return what was wrong with the answer, empty for nothing."""
    body = {"prompt": f"{uuid4()} Hello.", "max_tokens": TOKENS, "ignore_eos": True, "stream": streamed}
    try:
        text = complete(body, ANSWER_SECONDS)
    except TrialFailed as error:
        return f"{error.problem} {error.log}".strip()
    except (OSError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    if streamed and (not text.endswith("data: [DONE]\n\n") or 'data: {"error"' in text):
        return f"a stream ended with {text[-200:]!r}"
    return "" if streamed or '"choices"' in text else f"an answer was {text[:200]!r}"

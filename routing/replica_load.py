"""How much work one replica has before it, in seconds, and how fast it does it.

Work is the prefill of uncached prompt tokens. It is counted when a request is sent and runs down by the clock; the
first token of an answer shows how far the engine really is. Engines take requests in order, so each one has a position:
the seconds of all work sent to the replica up to the end of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import exp
from typing import Any, Generic, TypeVar

from routing.decode_speed import DecodeSpeed

R = TypeVar("R", bound=Hashable)

#: Over how many seconds arrivals are averaged.
AVERAGE_SECONDS = 10.0
#: The speed of an engine of which nothing is known, and how many tokens that guess weighs beside what is learned.
PRIOR_SECONDS_PER_TOKEN = 1 / 6000
PRIOR_TOKENS = 6000.0
#: What one more answer leaves of what was learned before.
MEMORY = 0.98
#: The least share of its time that an engine is assumed to be free, so that a price stays finite.
LEAST_FREE = 0.1


class ReplicaLoad(Generic[R]):
    """One replica; ``R`` identifies requests. Times are seconds of one clock."""

    __slots__ = (
        "_arrivals", "_averaged_at", "_busy", "_done", "_done_at", "_first_token_at", "_sent", "_waiting",
        "decode_speed", "learned_seconds", "learned_tokens", "running",
    )  # fmt: skip

    def __init__(self) -> None:
        #: Requests that have not ended.
        self.running: set[R] = set()
        self.decode_speed = DecodeSpeed()
        #: Seconds of prefill and the tokens computed in them; older answers count less.
        self.learned_seconds = self.learned_tokens = 0.0
        #: Position of the last request, and up to which position all work was done at what time.
        self._sent = self._done = self._done_at = 0.0
        #: Positions of streamed requests without a token yet, oldest first.
        self._waiting: dict[R, float] = {}
        #: Requests per second, their seconds of work per second, and when that was so.
        self._arrivals = self._busy = self._averaged_at = 0.0
        self._first_token_at = 0.0

    def backlog(self, now: float) -> float:
        """Return the seconds of work that a request sent now would wait for."""
        done = self._done + now - self._done_at
        for oldest in self._waiting.values():
            done = min(done, oldest)
            break
        return max(0.0, self._sent - done)

    def displaced(self, seconds: float, now: float) -> float:
        """Return how long the requests that are about to arrive will wait in all for one more of so many seconds.

        Until the backlog has run down, arrivals × backlog of them wait for it; the busier the engine is, the longer
        that takes.
        """
        fade = self._fade(now)
        free = max(LEAST_FREE, 1 - self._busy * fade)
        return seconds * self._arrivals * fade * (self.backlog(now) + seconds) / free

    def send(self, request: R, seconds: float, now: float, *, streamed: bool) -> None:
        """Count a request whose prompt takes so many seconds."""
        if not self.backlog(now):
            self._done, self._done_at = self._sent, now
        self._sent += seconds
        self.running.add(request)
        if streamed:
            self._waiting[request] = self._sent
        fade = self._fade(now)
        self._arrivals = self._arrivals * fade + 1 / AVERAGE_SECONDS
        self._busy = self._busy * fade + seconds / AVERAGE_SECONDS
        self._averaged_at = now

    def first_token(self, request: R, sent_at: float, now: float) -> float:
        """Record the first token of a streamed answer; return the seconds that its prompt took."""
        position = self._waiting.pop(request, 0.0)
        if position > self._done:
            self._done, self._done_at = position, now
        seconds = now - max(sent_at, self._first_token_at)
        self._first_token_at = now
        return seconds

    def end(self, request: R) -> None:
        """Record that a request ended, however."""
        self._waiting.pop(request, None)
        self.running.discard(request)

    def learn(self, seconds: float, tokens: int) -> None:
        """Record that computing so many prompt tokens took so long."""
        self.learned_seconds = self.learned_seconds * MEMORY + seconds
        self.learned_tokens = self.learned_tokens * MEMORY + tokens

    def seconds_per_token(self, typical: float) -> float:
        """Return the prefill speed; ``typical`` is that of its fellows."""
        return (self.learned_seconds + typical * PRIOR_TOKENS) / (self.learned_tokens + PRIOR_TOKENS)

    def _fade(self, now: float) -> float:
        return exp((self._averaged_at - now) / AVERAGE_SECONDS)


def typical_seconds_per_token(loads: Iterable[ReplicaLoad[Any]]) -> float:
    """Return the prefill speed of a group of replicas."""
    seconds, tokens = PRIOR_SECONDS_PER_TOKEN * PRIOR_TOKENS, PRIOR_TOKENS
    for load in loads:
        seconds += load.learned_seconds
        tokens += load.learned_tokens
    return seconds / tokens

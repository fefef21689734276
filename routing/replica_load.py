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
#: What one more answer leaves of what was learned before, and after how many seconds a third of it is left.
MEMORY = 0.98
MEMORY_SECONDS = 300.0
#: One answer teaches at most this multiple of what was expected: the first one of an engine may compile for it.
LARGEST_SURPRISE = 4.0
#: The least share of its time that an engine is assumed to be free, so that a price stays finite.
LEAST_FREE = 0.1


class ReplicaLoad(Generic[R]):
    """One replica; ``R`` identifies requests. Times are seconds of one clock."""

    __slots__ = (
        "_arrivals",
        "_averaged_at",
        "_busy",
        "_done",
        "_done_at",
        "_first_token_at",
        "_learned_at",
        "_learned_seconds",
        "_learned_tokens",
        "_sent",
        "_waiting",
        "decode_speed",
        "running",
    )  # fmt: skip

    def __init__(self) -> None:
        #: Requests that have not ended, with their positions.
        self.running: dict[R, float] = {}
        self.decode_speed = DecodeSpeed()
        #: Seconds of prefill and the tokens computed in them, as of a time; older answers count less.
        self._learned_seconds = self._learned_tokens = self._learned_at = 0.0
        #: Position of the last request, and up to which position all work was done at what time.
        self._sent = self._done = self._done_at = 0.0
        #: Positions of streamed requests without a token yet, oldest first.
        self._waiting: dict[R, float] = {}
        #: Requests per second, their seconds of work per second, and when that was so.
        self._arrivals = self._busy = self._averaged_at = 0.0
        self._first_token_at = 0.0

    def backlog(self, now: float) -> float:
        """Return the seconds of work that a request sent now would wait for."""
        if not self.running:
            return 0.0
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
        self.running[request] = self._sent
        if streamed:
            self._waiting[request] = self._sent
        fade = self._fade(now)
        self._arrivals = self._arrivals * fade + 1 / AVERAGE_SECONDS
        self._busy = self._busy * fade + seconds / AVERAGE_SECONDS
        self._averaged_at = now

    def answered(self, request: R, sent_at: float, now: float) -> float:
        """Record that an answer began, or came whole; return the seconds that its prompt took if it began now.

        Engines take requests in order, so the prompts that were sent before it are computed too.
        """
        position = self.running.get(request, 0.0)
        self._waiting.pop(request, None)
        if position > self._done:
            self._done, self._done_at = position, now
            self._waiting = {each: at for each, at in self._waiting.items() if at > position}
        seconds = now - max(sent_at, self._first_token_at)
        self._first_token_at = now
        return seconds

    def end(self, request: R) -> None:
        """Record that a request ended after it was answered."""
        self._waiting.pop(request, None)
        self.running.pop(request, None)

    def withdraw(self, request: R, seconds: float) -> None:
        """Record that a request ended without an answer, so that its work is not to be done."""
        if request in self.running:
            self.end(request)
            self._done = min(self._sent, self._done + seconds)

    def learn(self, seconds: float, tokens: int, now: float) -> None:
        """Record that computing so many prompt tokens took so long."""
        expected = tokens * self.seconds_per_token(PRIOR_SECONDS_PER_TOKEN, now)
        kept = MEMORY * self._kept(now)
        self._learned_seconds = self._learned_seconds * kept + min(seconds, LARGEST_SURPRISE * expected)
        self._learned_tokens = self._learned_tokens * kept + tokens
        self._learned_at = now

    def learned(self, now: float) -> tuple[float, float]:
        """Return seconds of prefill and the tokens computed in them."""
        kept = self._kept(now)
        return self._learned_seconds * kept, self._learned_tokens * kept

    def seconds_per_token(self, typical: float, now: float) -> float:
        """Return the prefill speed; ``typical`` is that of its fellows."""
        seconds, tokens = self.learned(now)
        return (seconds + typical * PRIOR_TOKENS) / (tokens + PRIOR_TOKENS)

    def _kept(self, now: float) -> float:
        return exp(min(0.0, self._learned_at - now) / MEMORY_SECONDS)

    def _fade(self, now: float) -> float:
        return exp((self._averaged_at - now) / AVERAGE_SECONDS)


def typical_seconds_per_token(loads: Iterable[ReplicaLoad[Any]], now: float) -> float:
    """Return the prefill speed of a group of replicas."""
    seconds, tokens = PRIOR_SECONDS_PER_TOKEN * PRIOR_TOKENS, PRIOR_TOKENS
    for load in loads:
        own_seconds, own_tokens = load.learned(now)
        seconds += own_seconds
        tokens += own_tokens
    return seconds / tokens

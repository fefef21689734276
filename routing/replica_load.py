"""How much work one replica has before it, in seconds, and how fast it does it.

Work is the prefill of uncached prompt tokens. It is counted when a request is sent and runs down by the clock; the
first token of an answer shows how far the engine really is. Engines take requests in order, so each one has a position:
the seconds of all work sent to the replica, by whatever process, up to the end of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import exp, fsum, inf
from typing import Any, Generic, TypeVar

from routing.decode_speed import DecodeSpeed
from routing.shared_state import PeerRow, ReplicaMemory, private_place

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
#: How old a view of the other processes may be, seconds; and after how long without a word from one its requests that
#: have no token yet no longer hold a backlog up.
PEERS_SECONDS = 0.005
SILENT_SECONDS = 5.0


class _Peers:
    """What the other processes have sent to one replica and learned of it, in all."""

    __slots__ = (
        "arrivals",
        "at",
        "busy",
        "decode_sums",
        "done",
        "first_token_at",
        "learned_seconds",
        "learned_tokens",
        "oldest",
        "running",
        "sent",
        "sent_at",
    )

    def __init__(self, rows: Iterable[PeerRow], now: float) -> None:
        self.at = now
        #: Seconds of work, of each process.
        self.sent: list[float] = []
        #: Up to which position all work was done at what time, by the latest observation.
        self.done = (0.0, 0.0)
        self.sent_at = self.first_token_at = 0.0
        self.running = self.arrivals = self.busy = self.learned_seconds = self.learned_tokens = 0.0
        #: Of each process the position of its oldest request without a token.
        self.oldest: list[float] = []
        self.decode_sums = (0.0,) * DecodeSpeed.SUMS
        for runs, row in rows:
            sent, done, done_at, oldest, running, arrivals, busy, sent_at, first_token_at, seconds, tokens, at = row[
                :12
            ]
            self.sent.append(sent)
            self.done = max(self.done, (done, done_at))
            if not runs:
                continue
            self.sent_at = max(self.sent_at, sent_at)
            self.first_token_at = max(self.first_token_at, first_token_at)
            self.running += running
            fade = exp(min(0.0, sent_at - now) / AVERAGE_SECONDS)
            self.arrivals += arrivals * fade
            self.busy += busy * fade
            kept = exp(min(0.0, at - now) / MEMORY_SECONDS)
            self.learned_seconds += seconds * kept
            self.learned_tokens += tokens * kept
            self.decode_sums = tuple(map(sum, zip(self.decode_sums, row[12:19], strict=True)))
            if running and now - row[19] < SILENT_SECONDS:
                self.oldest.append(oldest)


class ReplicaLoad(Generic[R]):
    """One replica; ``R`` identifies requests. Times are seconds of one clock."""

    __slots__ = (
        "_arrivals",
        "_averaged_at",
        "_busy",
        "_decode",
        "_done",
        "_done_at",
        "_first_token_at",
        "_learned_at",
        "_learned_seconds",
        "_learned_tokens",
        "_memory",
        "_others",
        "_sent",
        "_waiting",
        "running",
    )  # fmt: skip

    def __init__(self, memory: ReplicaMemory | None = None) -> None:
        #: Requests of this process that have not ended, with their positions.
        self.running: dict[R, float] = {}
        #: Positions of streamed requests without a token yet, oldest first.
        self._waiting: dict[R, float] = {}
        self._memory: ReplicaMemory | None = memory or private_place()
        # A process that ended may have had this row: positions go on from it.
        row = self._memory.own()
        #: The seconds of work sent by this process, and up to which position all work was done at what time.
        self._sent, self._done, self._done_at = row[:3]
        #: Requests per second, their seconds of work per second, and when that was so.
        self._arrivals, self._busy, self._averaged_at, self._first_token_at = row[5:9]
        #: Seconds of prefill and the tokens computed in them, as of a time; older answers count less.
        self._learned_seconds, self._learned_tokens, self._learned_at = row[9:12]
        self._decode = DecodeSpeed(row[12:19])
        self._others = _Peers((), 0.0)

    @property
    def last_sent_at(self) -> float:
        """Return when a request was last sent to it."""
        return max(self._averaged_at, self._others.sent_at)

    def requests(self, now: float) -> float:
        """Return how many requests run on it."""
        return len(self.running) + self._peers(now).running

    def decode_sums(self, now: float) -> tuple[float, ...]:
        """Return what was learned of its decoding; see :mod:`routing.decode_speed`."""
        others = self._peers(now).decode_sums
        return tuple(own + other for own, other in zip(self._decode.sums, others, strict=True))

    def backlog(self, now: float) -> float:
        """Return the seconds of work that a request sent now would wait for."""
        others = self._peers(now)
        if not self.running and not others.running:
            return 0.0
        position, at = max(others.done, (self._done, self._done_at))
        done = position + now - at
        for oldest in (self._oldest(position), *others.oldest):
            if position < oldest < done:
                done = oldest
        return max(0.0, self._position(others) - done)

    def displaced(self, seconds: float, now: float) -> float:
        """Return how long the requests that are about to arrive will wait in all for one more of so many seconds.

        Until the backlog has run down, arrivals × backlog of them wait for it; the busier the engine is, the longer
        that takes.
        """
        others, fade = self._peers(now), self._fade(now)
        fade_of_others = exp((others.at - now) / AVERAGE_SECONDS)
        free = max(LEAST_FREE, 1 - self._busy * fade - others.busy * fade_of_others)
        arrivals = self._arrivals * fade + others.arrivals * fade_of_others
        return seconds * arrivals * (self.backlog(now) + seconds) / free

    def send(self, request: R, seconds: float, now: float, *, streamed: bool) -> None:
        """Count a request whose prompt takes so many seconds."""
        others = self._peers(now, fresh=True)
        if not self.backlog(now):
            self._done, self._done_at = self._position(others), now
        self._sent += seconds
        self.running[request] = self._position(others)
        if streamed:
            self._waiting[request] = self.running[request]
        fade = self._fade(now)
        self._arrivals = self._arrivals * fade + 1 / AVERAGE_SECONDS
        self._busy = self._busy * fade + seconds / AVERAGE_SECONDS
        self._averaged_at = now
        self._publish(now)

    def answered(self, request: R, sent_at: float, now: float) -> float:
        """Record that an answer began, or came whole; return the seconds that its prompt took if it began now.

        Engines take requests in order, so the prompts that were sent before it are computed too.
        """
        others = self._peers(now, fresh=True)
        position = self.running.get(request, 0.0)
        self._waiting.pop(request, None)
        if position > max(others.done[0], self._done):
            self._done, self._done_at = position, now
            self._waiting = {each: at for each, at in self._waiting.items() if at > position}
        seconds = now - max(sent_at, self._first_token_at, others.first_token_at)
        self._first_token_at = now
        self._publish(now)
        return seconds

    def end(self, request: R, now: float) -> None:
        """Record that a request ended after it was answered."""
        self._waiting.pop(request, None)
        self.running.pop(request, None)
        self._publish(now)

    def withdraw(self, request: R, seconds: float, now: float) -> None:
        """Record that a request ended without an answer, so that its work is not to be done."""
        if request in self.running:
            others = self._peers(now, fresh=True)
            position, self._done_at = max(others.done, (self._done, self._done_at))
            self._done = min(self._position(others), position + seconds)
            self.end(request, now)

    def learn(self, seconds: float, tokens: int, now: float) -> None:
        """Record that computing so many prompt tokens took so long."""
        expected = tokens * self.seconds_per_token(PRIOR_SECONDS_PER_TOKEN, now)
        kept = MEMORY * self._kept(now)
        self._learned_seconds = self._learned_seconds * kept + min(seconds, LARGEST_SURPRISE * expected)
        self._learned_tokens = self._learned_tokens * kept + tokens
        self._learned_at = now
        self._publish(now)

    def learn_decoding(self, tokens: int, seconds: float, batch: float) -> None:
        """Record an answer; see :meth:`routing.decode_speed.DecodeSpeed.learn`."""
        self._decode.learn(tokens, seconds, batch)

    def learned(self, now: float) -> tuple[float, float]:
        """Return seconds of prefill and the tokens computed in them."""
        others, kept = self._peers(now), self._kept(now)
        return (
            self._learned_seconds * kept + others.learned_seconds,
            self._learned_tokens * kept + others.learned_tokens,
        )

    def seconds_per_token(self, typical: float, now: float) -> float:
        """Return the prefill speed; ``typical`` is that of its fellows."""
        seconds, tokens = self.learned(now)
        return (seconds + typical * PRIOR_TOKENS) / (tokens + PRIOR_TOKENS)

    def detach(self) -> None:
        """Write to the shared memory no more: its replica is forgotten, and others may have its place."""
        self._memory = None

    def _oldest(self, done: float) -> float:
        """Return the position of the first request of this process that has no token and is not done."""
        return next((position for position in self._waiting.values() if position > done), inf)

    def _position(self, others: _Peers) -> float:
        """Return the position of the last request, rounded alike in every process."""
        return fsum((self._sent, *others.sent)) if others.sent else self._sent

    def _peers(self, now: float, *, fresh: bool = False) -> _Peers:
        memory = self._memory
        if memory is not None and memory.has_peers and (fresh or now - self._others.at > PEERS_SECONDS):
            self._others = _Peers(memory.peers(), now)
        return self._others

    def _publish(self, now: float) -> None:
        if self._memory is not None:
            self._memory.write(
                self._sent, self._done, self._done_at, self._oldest(self._done), len(self.running),
                self._arrivals, self._busy, self._averaged_at, self._first_token_at,
                self._learned_seconds, self._learned_tokens, self._learned_at, *self._decode.sums, now,
            )  # fmt: skip

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

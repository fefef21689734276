"""How much work one replica has before it, in seconds, and how fast it does it.

Work is the prefill of uncached prompt tokens. It is counted when a request is sent and runs down by the clock; the
first token of an answer shows how far the engine really is. Engines take requests in order, so each one has a position:
the seconds of all work sent to the replica, by whatever process, up to the end of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import exp, fsum, inf
from operator import add
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec

from routing.replicas.decode_speed import DecodeSpeed, mean_tokens, seconds_per_neighbour
from routing.shared.state import PeerRow, ReplicaMemory, private_place

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
#: A replica is behind when the prompts before a new one take longer than this, seconds: long enough to keep the engine
#: busy until the next request is sent to it.
BEHIND_SECONDS = 0.05
#: How old a view of the other processes may be, seconds; and after how long without a word from one its requests that
#: have no token yet no longer hold a backlog up.
PEERS_SECONDS = 0.005
SILENT_SECONDS = 5.0
#: For how long the oldest prompt without a token holds the backlog up, beyond LARGEST_SURPRISE times what it should
#: take: then its engine is taken to be stuck with this one request, and to have computed those before a new one.
STUCK_SECONDS = 10.0


#: What a message of another host may say, in which times are before that of the message.
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Time = Annotated[float, msgspec.Meta(ge=-1e12, le=0)]


class LoadRow(NamedTuple):
    """One process's part of a replica's load, as it is kept in shared memory. Times are seconds of one clock."""

    #: Seconds of work sent, and those of requests that ended without an answer.
    sent: Amount = 0.0
    withdrawn: Amount = 0.0
    #: Up to which position all work was done at what time; and the position of the oldest request without a token.
    done: Amount = 0.0
    done_at: Time = 0.0
    oldest: float = inf
    #: Requests that have not ended.
    running: Amount = 0.0
    #: Requests per second and their seconds of work per second, when the last one was sent.
    arrivals: Amount = 0.0
    busy: Amount = 0.0
    sent_at: Time = 0.0
    first_token_at: Time = 0.0
    #: Seconds of prefill and the tokens computed in them, as of a time; older answers count less.
    learned_seconds: Amount = 0.0
    learned_tokens: Amount = 0.0
    learned_at: Time = 0.0
    #: See :mod:`routing.replicas.decode_speed`.
    answers: Amount = 0.0
    answer_tokens: Amount = 0.0
    paced_answers: Amount = 0.0
    batches: Amount = 0.0
    paces: Amount = 0.0
    squares: Amount = 0.0
    products: Amount = 0.0
    written_at: Time = 0.0

    @property
    def decode_sums(self) -> tuple[float, ...]:
        """Return what was learned of decoding."""
        return self[13:20]


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
            peer = LoadRow._make(row)
            self.sent.append(peer.sent)
            self.done = max(self.done, (peer.done, peer.done_at))
            if not runs:
                continue
            self.sent_at = max(self.sent_at, peer.sent_at)
            self.first_token_at = max(self.first_token_at, peer.first_token_at)
            self.running += peer.running
            fade = _left(now - peer.sent_at, AVERAGE_SECONDS)
            self.arrivals += peer.arrivals * fade
            self.busy += peer.busy * fade
            kept = _left(now - peer.learned_at, MEMORY_SECONDS)
            self.learned_seconds += peer.learned_seconds * kept
            self.learned_tokens += peer.learned_tokens * kept
            self.decode_sums = tuple(map(sum, zip(self.decode_sums, peer.decode_sums, strict=True)))
            if peer.running and now - peer.written_at < SILENT_SECONDS:
                self.oldest.append(peer.oldest)


class LoadEstimate(msgspec.Struct, frozen=True, gc=False):
    """What is known of a replica at one moment. Times are seconds."""

    #: The work that a request sent now would wait for.
    backlog: float
    #: Requests per second, and the share of its time that the engine is free.
    arrivals: float
    free: float
    #: Requests that run on it.
    requests: float
    #: Of recent prompts: the time that they took, and how many tokens were computed.
    learned_seconds: float
    learned_tokens: float
    #: What one more answer beside it adds to each token of an answer, and how many tokens an answer has.
    seconds_per_neighbour: float
    mean_tokens: float

    def seconds_per_token(self, typical: float) -> float:
        """Return the prefill speed; ``typical`` is that of its fellows."""
        return (self.learned_seconds + typical * PRIOR_TOKENS) / (self.learned_tokens + PRIOR_TOKENS)

    @property
    def unsure(self) -> float:
        """Return the share of the guess in the prefill speed, 0 to 1."""
        return PRIOR_TOKENS / (self.learned_tokens + PRIOR_TOKENS)

    def displaced(self, seconds: float, *, usual_arrivals: float = 0.0, newness: float = 0.0) -> float:
        """Return how long, in all, the requests that are about to arrive will wait for one more of this many seconds.

        Until the backlog has run down, arrivals × backlog of them wait for it; the busier the engine is, the longer
        that takes. ``newness``, 0 to 1: how much a new one, which has had few arrivals, is expected to have those that
        are usual among its fellows. Otherwise it would get every cold prompt, and be slow for long.
        """
        arrivals = self.arrivals + max(0.0, usual_arrivals - self.arrivals) * newness
        return seconds * arrivals * (self.backlog + seconds) / self.free


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
        "_pace",
        "_sent",
        "_waiting",
        "_withdrawn",
        "running",
    )  # fmt: skip

    def __init__(self, memory: ReplicaMemory | None = None) -> None:
        #: Requests of this process that have not ended, with their positions.
        self.running: dict[R, float] = {}
        #: Positions of streamed requests without a token yet, oldest first.
        self._waiting: dict[R, float] = {}
        self._memory: ReplicaMemory | None = memory or private_place()
        # A process that ended may have had this row: positions go on from it.
        row = LoadRow._make(self._memory.own())
        self._memory.write(*row._replace(running=0.0, oldest=inf))
        self._sent, self._withdrawn = row.sent, row.withdrawn
        self._done, self._done_at = row.done, row.done_at
        self._arrivals, self._busy, self._averaged_at = row.arrivals, row.busy, row.sent_at
        self._first_token_at = row.first_token_at
        self._learned_seconds, self._learned_tokens, self._learned_at = (
            row.learned_seconds, row.learned_tokens, row.learned_at
        )  # fmt: skip
        self._decode = DecodeSpeed(row.decode_sums)
        self._others = _Peers((), 0.0)
        #: Seconds per neighbour and tokens of an answer, until something more is learned.
        self._pace: tuple[float, float] | None = None

    @property
    def last_sent_at(self) -> float:
        """Return when a request was last sent to it."""
        return max(self._averaged_at, self._others.sent_at)

    def estimate(self, now: float) -> LoadEstimate:
        """Return what is known of it now."""
        others = self._peers(now)
        fade, kept = _left(now - self._averaged_at, AVERAGE_SECONDS), _left(now - self._learned_at, MEMORY_SECONDS)
        if self._pace is None:
            sums = tuple(map(add, self._decode.sums, others.decode_sums))
            self._pace = seconds_per_neighbour(sums), mean_tokens(sums)
        arrivals, busy = self._arrivals * fade, self._busy * fade
        if others.arrivals:
            fade_of_others = _left(now - others.at, AVERAGE_SECONDS)
            arrivals, busy = arrivals + others.arrivals * fade_of_others, busy + others.busy * fade_of_others
        return LoadEstimate(
            self._backlog(others, now),
            arrivals,
            max(LEAST_FREE, 1 - busy),
            len(self.running) + others.running,
            self._learned_seconds * kept + others.learned_seconds,
            self._learned_tokens * kept + others.learned_tokens,
            *self._pace,
        )

    @property
    def mean_tokens(self) -> float:
        """Return how many tokens an answer had on average, as of the last estimate."""
        return self._pace[1] if self._pace is not None else 0.0

    def requests(self, now: float) -> float:
        """Return how many requests run on it."""
        return len(self.running) + self._peers(now).running

    def is_behind(self, now: float) -> bool:
        """Return whether a request sent now would wait for others' prompts in the engine's own queue.

        Only a streamed request without a token shows that the engine is still at them, however fast it is.
        """
        others = self._peers(now)
        if not self._waiting and not others.oldest:
            return False
        done, at = max(others.done, (self._done, self._done_at))
        unanswered = any(_holds(position, done, now - at) for position in (self._oldest(done), *others.oldest))
        return unanswered and self._backlog(others, now) > BEHIND_SECONDS

    def send(self, request: R, seconds: float, now: float, *, streamed: bool) -> None:
        """Count a request whose prompt takes this many seconds."""
        others = self._peers(now, fresh=True)
        if not self._backlog(others, now):
            self._done, self._done_at = self._position(others), now
        self._sent += seconds
        self.running[request] = self._position(others)
        if streamed:
            self._waiting[request] = self.running[request]
        fade = _left(now - self._averaged_at, AVERAGE_SECONDS)
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
        seconds = max(0.0, now - max(sent_at, self._first_token_at, others.first_token_at))
        self._first_token_at = now
        self._publish(now)
        return seconds

    def follow_remote(self, process: int, told: LoadRow, work: float, now: float) -> None:
        """Record the message of a process on another host, and the seconds of ``work`` it sent since its last message.

        ``told`` is without positions, because those are this host's own.
        """
        if self._memory is None:
            return
        others = self._peers(now, fresh=True)
        before = LoadRow._make(self._memory.row(process))
        done, done_at = before.done, before.done_at
        if work > 0 and not self._backlog(others, now):
            done, done_at = self._position(others), now
        row = told._replace(sent=before.sent + work, withdrawn=0.0, done=done, done_at=done_at, oldest=inf)
        self._memory.write_row(process, *row)

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
            self._withdrawn += seconds
            self.end(request, now)

    def seconds_per_token(self, now: float) -> float:
        """Return the prefill speed, by this replica's answers alone."""
        return self.estimate(now).seconds_per_token(PRIOR_SECONDS_PER_TOKEN)

    def learn(self, seconds: float, tokens: int, now: float) -> None:
        """Record how long the computing of these prompt tokens took."""
        expected = tokens * self.seconds_per_token(now)
        kept = MEMORY * _left(now - self._learned_at, MEMORY_SECONDS)
        self._learned_seconds = self._learned_seconds * kept + min(seconds, LARGEST_SURPRISE * expected)
        self._learned_tokens = self._learned_tokens * kept + tokens
        self._learned_at = now

    def learn_decoding(self, tokens: int, seconds: float, batch: float) -> None:
        """Record an answer; see :meth:`routing.replicas.decode_speed.DecodeSpeed.learn`."""
        self._decode.learn(tokens, seconds, batch)
        self._pace = None

    def detach(self) -> None:
        """Stop writing to the shared memory: its replica is forgotten, and others may have its place."""
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
            self._pace = None
        return self._others

    def _backlog(self, others: _Peers, now: float) -> float:
        if not self.running and not others.running:
            return 0.0
        position, at = max(others.done, (self._done, self._done_at))
        done = position + now - at
        for oldest in (self._oldest(position), *others.oldest):
            if oldest < done and _holds(oldest, position, now - at):
                done = oldest
        return max(0.0, self._position(others) - done)

    def _publish(self, now: float) -> None:
        if self._memory is not None and self._memory.has_peers:
            self._memory.write(*self.row(now))

    def row(self, now: float) -> LoadRow:
        """Return this process's part."""
        return LoadRow._make(
            (
                self._sent, self._withdrawn, self._done, self._done_at, self._oldest(self._done), len(self.running),
                self._arrivals, self._busy, self._averaged_at, self._first_token_at,
                self._learned_seconds, self._learned_tokens, self._learned_at, *self._decode.sums, now,
            )
        )  # fmt: skip


def _holds(oldest: float, done: float, seconds: float) -> bool:
    """Return whether a prompt without a token holds the work up that follows it.

    ``oldest``: its position. ``seconds``: for how long the work up to ``done`` has been known to be done.
    """
    return done < oldest < inf and seconds < STUCK_SECONDS + LARGEST_SURPRISE * (oldest - done)


def _left(seconds: float, of: float) -> float:
    """Return what is left of something that fades to a third in ``seconds``."""
    return exp(-seconds / of) if seconds > 0 else 1.0


def typical_seconds_per_token(estimates: Iterable[LoadEstimate]) -> float:
    """Return the prefill speed of a group of replicas."""
    seconds, tokens = PRIOR_SECONDS_PER_TOKEN * PRIOR_TOKENS, PRIOR_TOKENS
    for each in estimates:
        seconds += each.learned_seconds
        tokens += each.learned_tokens
    return seconds / tokens

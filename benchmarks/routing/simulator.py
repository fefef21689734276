"""A discrete-event simulation: engines that compute in steps, gateways that choose among them, clients that ask.

Time is a number; nothing sleeps. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol, runtime_checkable

from benchmarks.routing.workload import Conversation, Turn, Workload, hashes
from workers.simulated.engine.block_pool import BlockPool
from workers.simulated.engine.host_tier import HostTier
from workers.simulated.engine.scheduler import Scheduled, Scheduler, Step, StepCosts

#: Of every engine: seconds of a step, and of each sequence that it decodes for.
STEP_SECONDS = 0.004
SEQUENCE_SECONDS = 0.0002
MAX_SEQUENCES = 64
MAX_STEP_TOKENS = 2048
#: How often a gateway looks whether a request must still wait, beside each time that an answer begins or ends.
LOOK_SECONDS = 0.005
#: How often a replica that is to restart looks whether it has answered everything.
RESTART_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory of an engine: its blocks, as a multiple of the cache's, and how fast they are copied back."""

    factor: float
    tokens_per_second: float


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way. Times in seconds."""

    turn: Turn
    conversation: Conversation
    number: int
    sent_at: float
    gateway: int = 0
    replica: int = -1
    first_token_at: float = 0.0
    ended_at: float = 0.0
    cached_tokens: int = 0
    reloaded_tokens: int = 0
    sequence: Scheduled | None = None

    @property
    def ttft(self) -> float:
        """Return the time to the first token."""
        return self.first_token_at - self.sent_at


class Policy(Protocol):
    """Chooses the replica of a request, and is called with the result."""

    def choose(self, request: Request, now: float) -> int | None:
        """Return the number of a replica; None if the request waits, which only a Queue may let it."""

    def first_token(self, request: Request, now: float) -> None:
        """Hear of the first token of an answer."""

    def ended(self, request: Request, now: float) -> None:
        """Hear that an answer ended."""


@runtime_checkable
class Follower(Protocol):
    """A policy that can do with fewer replicas."""

    def follow(self, replicas: Sequence[int], now: float) -> None:
        """Hear which replicas there are. One that was missing for a while has an empty cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A replica that gets no request from ``at`` on, and is back with an empty cache at ``back_at`` seconds.

    Until then it has answered what it had; if not, it comes back later.
    """

    replica: int
    at: float
    back_at: float


@runtime_checkable
class Queue(Protocol):
    """A policy that lets requests wait."""

    def turns(self, now: float) -> Iterator[tuple[Request, int]]:
        """Yield requests that need wait no longer, and their replicas."""


@dataclass(slots=True, eq=False)
class Engine:
    """One replica in the simulation."""

    scheduler: Scheduler[Scheduled]
    costs: StepCosts
    #: How long a copy of one token from host memory takes. Copies follow each other; when the last of them ends.
    reload_seconds: float = 0.0
    reloaded_at: float = 0.0
    requests: dict[Scheduled, Request] = field(default_factory=dict)
    step: Step[Scheduled] | None = None
    began: float = 0.0
    #: Of one step, and how many follow each other unchanged.
    seconds: float = 0.0
    repeats: int = 1
    #: Distinguishes the present end from one that was moved.
    version: int = 0
    busy_seconds: float = 0.0
    computed_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Reloaded:
    """The blocks of a sequence that come from host memory are there."""

    engine: Engine
    sequence: Scheduled


class _Look:
    """Time for the gateways to look whether requests must still wait."""


@dataclass(frozen=True, slots=True)
class _Next:
    """A turn that is due."""

    conversation: Conversation
    number: int


class Simulation:
    """One run."""

    def __init__(
        self,
        workload: Workload,
        policies: Sequence[Policy],
        engines: Sequence[Engine],
        *,
        restart: Restart | None = None,
    ) -> None:
        self.engines = engines
        self.requests: list[Request] = []
        self._policies = policies
        self._block_size = workload.block_size
        self._events: list[tuple[float, int, Engine | _Reloaded | _Next | _Look | Restart, int]] = []
        self._queues = deque(each for each in policies if isinstance(each, Queue))
        self._waiting = 0
        self._order = itertools.count()
        self._gateways = itertools.cycle(range(len(policies)))
        #: When the replica of ``restart`` was back.
        self.back_at: float | None = None
        if restart is not None:
            self._push(restart.at, restart)
        for conversation in workload.conversations:
            self._push(conversation.at, _Next(conversation, 0))

    def run(self) -> list[Request]:
        """Run to the end, and return every request in the order in which they were sent."""
        events = self._events
        while events:
            now, _, what, version = heapq.heappop(events)
            if isinstance(what, Engine):
                if what.version == version:
                    self._end_step(what, now)
            elif isinstance(what, _Reloaded):
                what.engine.scheduler.reloaded(what.sequence)
                self._wake(what.engine, now)
            elif isinstance(what, _Next):
                self._send(what, now)
            elif isinstance(what, Restart):
                self._restart(what, now)
            elif self._waiting:
                self._push(now + LOOK_SECONDS, what)
            if self._waiting:
                self._give_turns(now)
        return self.requests

    def _push(self, at: float, what: Engine | _Reloaded | _Next | _Look | Restart, version: int = 0) -> None:
        heapq.heappush(self._events, (at, next(self._order), what, version))

    def _restart(self, restart: Restart, now: float) -> None:
        """Let a replica go or come back."""
        engine = self.engines[restart.replica]
        there = list(range(len(self.engines)))
        if now < restart.back_at:
            there.remove(restart.replica)
            self._push(restart.back_at, restart)
        elif not engine.scheduler.pool.clear():
            self._push(now + RESTART_SECONDS, restart)
            return
        else:
            if engine.scheduler.host is not None:
                engine.scheduler.host.clear()
            self.back_at = now
        for policy in self._policies:
            if isinstance(policy, Follower):
                policy.follow(there, now)

    def _send(self, due: _Next, now: float) -> None:
        conversation, number = due.conversation, due.number
        turn = conversation.turns[number]
        gateway = next(self._gateways) if conversation.gateway is None else conversation.gateway
        request = Request(turn, conversation, number, now, gateway)
        self.requests.append(request)
        replica = self._policies[request.gateway].choose(request, now)
        if replica is not None:
            self._begin(request, replica, now)
            return
        if not self._waiting:
            self._push(now + LOOK_SECONDS, _Look())
        self._waiting += 1

    def _give_turns(self, now: float) -> None:
        self._queues.rotate()  # no process is always the first to look
        for queue in self._queues:
            for request, replica in queue.turns(now):
                self._waiting -= 1
                self._begin(request, replica, now)

    def _begin(self, request: Request, replica: int, now: float) -> None:
        request.replica, turn = replica, request.turn
        engine = self.engines[request.replica]
        sequence = request.sequence = Scheduled(turn.prompt_tokens, turn.output_tokens, hashes(turn.blocks))
        engine.requests[sequence] = request
        engine.scheduler.add(sequence)
        self._wake(engine, now)

    def _wake(self, engine: Engine, now: float) -> None:
        """Let an engine begin with what it has got."""
        if engine.step is None:
            self._begin_step(engine, now)
        elif engine.repeats > 1:
            # The step that runs now ends as it would; those that were to follow are decided anew.
            engine.repeats = max(1, ceil((now - engine.began) / engine.seconds))
            engine.version += 1
            self._push(engine.began + engine.repeats * engine.seconds, engine, engine.version)

    def _begin_step(self, engine: Engine, now: float) -> None:
        step = engine.step = engine.scheduler.next_step()
        for sequence in engine.scheduler.take_reloads():
            engine.reloaded_at = max(now, engine.reloaded_at) + sequence.reloaded_tokens * engine.reload_seconds
            self._push(engine.reloaded_at, _Reloaded(engine, sequence))
        if step is None:
            return
        engine.began = now
        engine.seconds = engine.costs.seconds(step.prompt_tokens, step.decoding)
        engine.repeats = engine.scheduler.steady_steps(step)
        engine.version += 1
        self._push(now + engine.repeats * engine.seconds, engine, engine.version)

    def _end_step(self, engine: Engine, now: float) -> None:
        step = engine.step
        assert step is not None
        engine.busy_seconds += now - engine.began
        engine.computed_prompt_tokens += step.prompt_tokens
        scheduler = engine.scheduler
        for _ in range(engine.repeats - 1):
            scheduler.repeat(step)
        for sequence in scheduler.complete(step):
            if sequence.emitted == 1:
                request = engine.requests[sequence]
                request.first_token_at = now
                request.cached_tokens = sequence.cached_tokens
                request.reloaded_tokens = sequence.reloaded_tokens
                self._policies[request.gateway].first_token(request, now)
            if sequence.emitted >= sequence.output_tokens:
                scheduler.remove(sequence)
                self._finish(engine.requests.pop(sequence), now)
        self._begin_step(engine, now)

    def _finish(self, request: Request, now: float) -> None:
        request.ended_at = now
        request.sequence = None
        self._policies[request.gateway].ended(request, now)
        following = request.number + 1
        if following < len(request.conversation.turns):
            think = request.conversation.turns[following].think_seconds
            self._push(now + think, _Next(request.conversation, following))


def engines(count: int, workload: Workload, host: HostMemory | None = None) -> list[Engine]:
    """Return engines of the workload's size and speed, with host memory if that is given."""
    costs = StepCosts(fixed=STEP_SECONDS, prompt_token=1 / workload.tokens_per_second, decode=SEQUENCE_SECONDS)
    return [
        Engine(
            Scheduler(
                BlockPool(workload.cache_blocks + 1),
                block_size=workload.block_size,
                max_sequences=MAX_SEQUENCES,
                max_step_tokens=MAX_STEP_TOKENS,
                host=HostTier(int(workload.cache_blocks * host.factor)) if host is not None else None,
            ),
            costs,
            reload_seconds=1 / host.tokens_per_second if host is not None else 0.0,
        )
        for _ in range(count)
    ]

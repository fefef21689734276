"""Hearth's gateway with some of its parts left out: an ASGI application for the ladder, never for production.

It is the real journey with the real parts. Those that BENCH_RUNG does not name are replaced by ones that do nothing,
because production has no switch for them; limits and the prediction cache are switched by a tenant's own policy.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")

import django

django.setup(set_prefix=False)

from django.conf import settings

from billing.wal.records import Record
from billing.wal.writer import WalWriter
from catalogue.routing_policy import DEFAULT, RoutingPolicy
from gateway.control_plane.in_flight import InFlight
from gateway.pipeline.components import Components
from gateway.pipeline.handler import Pipeline
from gateway.pipeline.runtime import Runtime
from gateway.upstream.dispatcher import Dispatcher
from gateway.upstream.queue.bounds import QueueBounds
from gateway.upstream.rollout_outcomes import RolloutOutcomes
from hearth.asgi import GatewayRole
from routing.errors import NoReplica
from routing.prefixes.warm_prefixes import Use
from routing.router import AnswerStart, Candidate, Choice, Router, RoutingRequest

VARIABLE = "BENCH_RUNG"
ROUTING, WAL = "routing", "wal"


class FirstReplica(Router):
    """Sends everything to the first replica and remembers nothing."""

    def choose(
        self,
        ask: RoutingRequest,
        candidates: Sequence[UUID],
        *,
        free: Collection[UUID] | None = None,
        policy: RoutingPolicy = DEFAULT,
    ) -> Choice:
        """Return the first candidate. Raises NoReplica."""
        if not candidates:
            raise NoReplica
        return Choice(
            replica_id=candidates[0],
            reason="only",
            warm_tokens=0,
            held_tokens=0,
            tokens=0,
            prefill=0.0,
            prefix=ask.prefix,
            depth=0,
            use=Use(0, 0, 0),
            sent_at=0.0,
            known=self._known(candidates[0]),
            candidates=[_nothing(candidates[0])],
            home=None,
            policy=policy,
        )

    def answered(self, choice: Choice, *, streamed: bool) -> AnswerStart:
        """Measure nothing."""
        return AnswerStart(at=0.0, prefill_seconds=0.0, batch=0, streamed=streamed)

    def learn(
        self,
        choice: Choice,
        start: AnswerStart,
        *,
        computed_tokens: int,
        cached_tokens: int | None,
        completion_tokens: int,
    ) -> None:
        """Learn nothing."""

    def finish(self, choice: Choice, *, answered: bool) -> None:
        """Count nothing."""


def _nothing(replica_id: UUID) -> Candidate:
    return Candidate(replica_id=replica_id, warm_tokens=0, depth=0, backlog=0.0, prefill=0.0, displaced=0.0, decode=0.0)


def _first_replica(running: Runtime) -> Dispatcher:
    return Dispatcher(running.upstream, FirstReplica(), InFlight(), QueueBounds(), running.decisions, RolloutOutcomes())


class NoLog(WalWriter):
    """Writes nothing down."""

    def append(self, *records: Record) -> None:
        """Forget the records."""

    async def synced(self) -> None:
        """Return at once."""


class Rung(GatewayRole):
    """The gateway role with these parts only."""

    def __init__(self, kept: frozenset[str]) -> None:
        super().__init__()
        self._kept = kept

    def _running(self) -> Runtime:
        if self._runtime is None:
            running = super()._running()
            self._runtime = replace(running, pipeline=Pipeline(self._reduced(running)))
        return self._runtime

    def _reduced(self, running: Runtime) -> Components:
        parts = running.components
        if ROUTING not in self._kept:
            parts = replace(parts, dispatcher=_first_replica(running))
        if WAL not in self._kept:
            parts = replace(parts, wal=NoLog(settings.WAL_DIR, "bench"))
        return parts


application = Rung(frozenset(os.environ.get(VARIABLE, "").split()))

"""What a traced request records on its way: its stages, and the calls of engines. ``gateway.tracing`` sends it.

A request that is not traced has no :class:`RequestTrace`, and each stage checks only that. Recorded are times, ids and
labels of Hearth's own: never a part of a prompt or a response, nor an error's text, which may quote one.
"""

from __future__ import annotations

import random
import time
from typing import Literal
from uuid import UUID

import msgspec

from billing.wal.records import End
from tenants.snapshot.snapshot import Caller

#: In the order in which a request may pass them; one that waits or tries again passes some of them more than once.
StageName = Literal["authenticate and parse", "cache lookup", "admission", "coalescing", "queue", "stream"]
Value = str | int | float | bool
#: A request that waits passes some stages again with each try.
MOST_STAGES = 64


class Stage(msgspec.Struct, kw_only=True, eq=False):
    """One stage. Times are those of time.perf_counter()."""

    name: StageName
    started: float
    ended: float | None = None
    attributes: dict[str, Value] = msgspec.field(default_factory=dict)


class EngineCall(msgspec.Struct, kw_only=True, eq=False):
    """One request to one engine, which gets ``span_id`` as the parent of its own span."""

    trace_id: int
    span_id: int
    started: float
    base_url: str
    replica_id: UUID
    deployment: str
    route_reason: str
    #: From sending the request to the first byte of the response's body; None: none arrived.
    first_byte_seconds: float | None = None
    ended: float | None = None
    #: Why the engine gave no response, as a metric's label or an error's code; empty if it did.
    error: str = ""

    @property
    def traceparent(self) -> str:
        """Return the header that makes an engine's span a child of this call (W3C Trace Context, level 1)."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"

    def end(self, error: str = "") -> None:
        """Record the end of the response. Only the first call counts."""
        if self.ended is None:
            self.ended, self.error = time.perf_counter(), error


class RequestTrace(msgspec.Struct, kw_only=True, eq=False):
    """One traced request. Its trace has the id of the request, so that each leads to the other."""

    trace_id: int
    span_id: int
    method: str
    #: The path, or what stands for it where it has ids.
    route: str
    #: What the client sent as its ``traceparent``: a link, because a client decides neither ids nor sampling.
    client_traceparent: str
    #: It was accepted earlier and runs now.
    deferred: bool = False
    caller: Caller | None = None
    stages: list[Stage]
    calls: list[EngineCall] = msgspec.field(default_factory=list)
    #: Its usage record, once it has one.
    end: End | None = None
    #: The code of the error that its client received.
    error_code: str = ""
    #: Its response is a stream.
    streamed: bool = False
    #: It was sent, or dropped.
    finished: bool = False

    def enter(self, name: StageName) -> Stage:
        """Begin a stage, which ends the one before; return it. A request that looks again is still in the same one.

        Beyond MOST_STAGES the last one goes on, because a request may wait for an hour.
        """
        last = self.stages[-1] if self.stages else None
        if last is not None and (last.name == name or len(self.stages) >= MOST_STAGES):
            last.ended = None
            return last
        now = time.perf_counter()
        if last is not None:
            self._end_stage(now)
        stage = Stage(name=name, started=now)
        self.stages.append(stage)
        return stage

    def leave(self) -> None:
        """End the stage."""
        self._end_stage(time.perf_counter())

    def call_engine(self, *, base_url: str, replica_id: UUID, deployment: str, route_reason: str) -> EngineCall:
        """Begin a request to an engine, which ends the stage before."""
        now = time.perf_counter()
        self._end_stage(now)
        call = EngineCall(
            trace_id=self.trace_id,
            span_id=new_span_id(),
            started=now,
            base_url=base_url,
            replica_id=replica_id,
            deployment=deployment,
            route_reason=route_reason,
        )
        self.calls.append(call)
        return call

    def finish(self, now: float) -> None:
        """End what has not ended."""
        self.finished = True
        self._end_stage(now)
        for call in self.calls:
            call.end()

    def _end_stage(self, now: float) -> None:
        last = self.stages[-1]
        if last.ended is None:
            last.ended = now


def new_span_id() -> int:
    """Return a random id, which is never 0."""
    return random.getrandbits(64) or 1

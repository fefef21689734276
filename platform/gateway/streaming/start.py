"""Start the stream of a response: an engine's own, another request's, or one that first waits for a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gateway.cache.policy import CachePolicy
from gateway.coalescing.coalescer import Coalescer, Followed
from gateway.metering.meter import Meter
from gateway.protocols.endpoint import Usage
from gateway.request import SSE, Heartbeat, RequestContext, Response
from gateway.streaming.engine_stream import EngineStream
from gateway.streaming.follower_stream import FollowerStream
from gateway.streaming.pending_stream import PendingStream, done_within
from gateway.upstream.dispatcher import EngineReply
from gateway.upstream.queue.wait_queue import ReplicaQueue
from routing import explanation
from tenants.isolation import keyspace


class StartedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that an engine has begun, and what the prediction cache may do with it."""

    reply: EngineReply
    policy: CachePolicy


#: Receives a complete response: its cache policy, its body as non-streamed JSON (None when it has no such form), its
#: usage (None when the engine did not report it), and how long an engine worked on it, milliseconds.
OnComplete = Callable[[CachePolicy, bytes | None, Usage | None, float], object]
Obtain = Callable[[], Awaitable[StartedReply | Followed]]


class StreamStarter:
    """Starts the stream of one request."""

    def __init__(
        self,
        context: RequestContext,
        meter: Meter,
        coalescer: Coalescer[StartedReply],
        queue: ReplicaQueue,
        *,
        obtain: Obtain,
        on_complete: OnComplete,
    ) -> None:
        """``obtain`` returns the engine's reply or the flight to follow; it may be called again."""
        self._context = context
        self._meter = meter
        self._coalescer = coalescer
        self._queue = queue
        self._obtain = obtain
        self._on_complete = on_complete

    async def start(self) -> Response:
        """Return the stream. It begins before its reply does when that takes longer than a heartbeat.

        Until the engine's first byte the reply may still come from another replica.
        """
        obtained = asyncio.ensure_future(self._obtain())
        heartbeat = self._heartbeat()
        error_event = self._context.call.endpoint.error_event
        pending = PendingStream(obtained, self._begin, heartbeat=heartbeat, error_event=error_event)
        try:
            if await done_within(obtained, heartbeat.every_seconds):
                return self._begin(obtained.result())
        except asyncio.CancelledError:
            pending.close()  # the reply may have begun at the moment at which the client disconnected
            raise
        return Response(
            status=200,
            headers=[*SSE, *self._context.timeline.headers],
            stream=pending.pieces(),
            heartbeat=heartbeat,
            on_close=pending.close,
            end_with=pending.end_with,
        )

    def _begin(self, found: StartedReply | Followed) -> Response:
        return self._from_engine(found) if isinstance(found, StartedReply) else self._from_flight(found)

    def _from_engine(self, started: StartedReply) -> Response:
        policy, flight = started.policy, self._coalescer.flight
        self._enter_stream()
        add_route_headers(self._context, started.reply)

        def complete(body: bytes | None, usage: Usage | None, engine_ms: float) -> None:
            self._on_complete(policy, body, usage, engine_ms)

        stream = EngineStream(
            started.reply,
            self._context.call.endpoint.stream_parser(keep=policy.writable or flight is not None),
            self._meter,
            self._context,
            on_complete=complete,
            flight=flight,
        )
        return Response(
            status=200,
            headers=[*SSE, *self._context.timeline.headers, *policy.status_headers(stored=False)],
            stream=stream.pieces(),
            heartbeat=self._heartbeat(),
            on_close=stream.close,
            end_with=stream.end_with,
        )

    def _from_flight(self, followed: Followed) -> Response:
        self._enter_stream()
        stream = FollowerStream(
            followed, self._coalescer, self._context.call, self._meter, again=self._obtain, begin=self._from_engine
        )
        return Response(
            status=200,
            headers=[*SSE, *self._context.timeline.headers],
            stream=stream.pieces(),
            heartbeat=self._heartbeat(),
            on_close=stream.close,
            end_with=stream.end_with,
        )

    def _enter_stream(self) -> None:
        trace = self._context.timeline.trace
        if trace is not None:
            trace.enter("stream")

    def _heartbeat(self) -> Heartbeat:
        def comment() -> str:
            waits_for = self._context.timeline.waits_for
            if waits_for == "engine" or self._coalescer.follows:
                return "waiting for the engine"
            if waits_for == "room":
                return "waiting for room on a replica"
            seconds = self._queue.startup_eta_seconds(self._context.model, self._context.caller.allowed_regions)
            return f"waiting for a replica, which usually takes {seconds:.0f} s"

        return Heartbeat(every_seconds=self._queue.heartbeat_seconds, comment=comment)


def add_route_headers(context: RequestContext, reply: EngineReply) -> None:
    """Add the headers that name the replica and why it was chosen."""
    replica = keyspace.replica_token(context.caller.tenant_id, reply.choice.replica_id)
    route = explanation.header(reply.choice).encode()
    context.timeline.headers += [(b"x-route", route), (b"x-replica", replica)]

"""One inference request, from the prediction cache to the last byte."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Literal

import msgspec
import orjson

from caching.entry import Entry
from catalogue.registry import ServedModel
from gateway import metrics
from gateway.admission import cost_estimate
from gateway.admission.controller import AdmissionRequest
from gateway.cache.lookup import CacheHit, CacheLookup
from gateway.cache.policy import CachePolicy, hit_headers, new_entry, policy_for
from gateway.coalescing.coalescer import Coalescer, Followed
from gateway.errors import NOT_NOW, EngineFailed, EngineRefused, GatewayError, not_cached
from gateway.metering import cost_headers
from gateway.metering.meter import Meter
from gateway.pipeline.components import Components
from gateway.protocols.request_body import Call
from gateway.protocols.usage import Usage
from gateway.request import JSON, SSE, Headers, Heartbeat, Request, RequestTimeline, Response
from gateway.streaming.engine_stream import EngineStream
from gateway.streaming.follower_stream import FollowerStream
from gateway.streaming.pending_stream import PendingStream, done_within
from gateway.upstream import routing_request
from gateway.upstream.dispatcher import EngineReply
from gateway.upstream.wait_queue import QueuedRequest
from routing.router import RoutingRequest
from tenants import keyspace
from tenants.snapshot import Caller
from workers.serving.endpoints import Endpoint

log = logging.getLogger(__name__)


class StartedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that has begun, and where the answer may be kept."""

    reply: EngineReply
    policy: CachePolicy


class Inference:
    """Runs one checked call for one caller."""

    def __init__(
        self, components: Components, caller: Caller, call: Call, model: ServedModel, timeline: RequestTimeline
    ) -> None:
        self._components = components
        self._caller = caller
        self._call = call
        self._model = model
        self._timeline = timeline
        self._meter = Meter(components.wal, timeline, caller, call, model)
        self._coalescer: Coalescer[StartedReply] = Coalescer(
            components.single_flight, caller, call, model, self._meter, timeline
        )
        #: When it began to wait for a replica; None while it does not have to.
        self._held_since: float | None = None
        #: Some replica has it, so that its client waits for an engine.
        self._at_engine = False
        call.body["model"] = model.name
        call.endpoint.clamp(call.body, model.context_length_tokens)

    async def run(self, request: Request, *, limited: bool = True) -> Response:
        """Answer the call. ``limited`` False: its request was already counted. Raises GatewayError."""
        policy = policy_for(self._caller, self._call, self._model, request.headers)
        try:
            stored = await self._admit(policy, len(request.body), limited=limited)
            if stored is not None:
                if self._call.digest is None and policy.digest is not None:
                    self._components.parsed_requests.put(
                        self._caller, self._call, self._model, request.body, policy.digest
                    )
                return self._replay(stored)
            if policy.only_if_cached:
                raise not_cached(policy.miss_headers())
            self._meter.admitted()
            self._tell_cache(policy)
            self._coalescer.prepare(policy, request.disconnect)
            if self._call.stream:
                return await self._streamed(policy, request)
            return await self._whole(await self._obtain(policy, request))
        except BaseException as error:
            self._close_failed(error)
            raise

    def _obtain(self, policy: CachePolicy, request: Request) -> Awaitable[StartedReply | Followed]:
        """Return the first reply, or the answer of an identical request in flight. Raises GatewayError."""
        return self._coalescer.lead_or_follow(lambda: self._reply(policy, request))

    async def _reply(self, policy: CachePolicy, request: Request) -> StartedReply:
        """Return the first reply, of a replica that is still to come if need be. Raises GatewayError."""
        ask = routing_request.build(self._call, self._caller, self._model, request.headers)
        try:
            return await self._begin(ask, policy)
        except NOT_NOW as failure:
            self._meter.wait()
            self._held_since = time.perf_counter()
            guest = QueuedRequest(
                tenant_id=self._caller.tenant_id,
                model=self._model,
                size_bytes=len(request.body),
                tokens=ask.prefix.tokens + ask.max_new_tokens,
                waited_seconds=self._coalescer.waited_seconds,
            )
            return await self._components.replica_queue.wait(guest, failure, lambda: self._begin(ask, policy))

    async def _begin(self, ask: RoutingRequest, policy: CachePolicy) -> StartedReply:
        """Return the first reply of the replicas that are ready now. Raises GatewayError, of it NOT_NOW."""
        if self._held_since is not None:
            self._timeline.queue_seconds = time.perf_counter() - self._held_since
        endpoints, current = self._ready()
        self._at_engine = True
        try:
            reply = await self._components.dispatcher.send(
                self._call,
                ask,
                keyspace.cache_salt(self._caller, self._model.name),
                endpoints,
                self._meter,
                self._timeline,
            )
        except NOT_NOW:
            self._at_engine = False
            self._meter.unasked()
            raise
        return StartedReply(reply=reply, policy=policy if current else policy.without_storing())

    async def _streamed(self, policy: CachePolicy, request: Request) -> Response:
        """Answer with a stream, which begins before its reply does when that takes longer than a heartbeat.

        Until the engine's first byte the reply may still come from another replica.
        """

        def obtain() -> Awaitable[StartedReply | Followed]:
            return self._closing(self._obtain(policy, request))

        def begin(found: StartedReply | Followed) -> Response:
            return self._stream(found) if isinstance(found, StartedReply) else self._follow(found, obtain)

        begun = asyncio.ensure_future(obtain())
        heartbeat = self._heartbeat()
        late = PendingStream(begun, begin, heartbeat=heartbeat, error_event=self._call.endpoint.error_event)
        try:
            if await done_within(begun, heartbeat.every_seconds):
                return begin(begun.result())
        except asyncio.CancelledError:
            late.close()  # the reply may have begun at the very moment at which its client left
            raise
        return Response(
            status=200,
            headers=[*SSE, *self._timeline.headers],
            stream=late.pieces(),
            heartbeat=heartbeat,
            on_close=late.close,
            end_with=late.end_with,
        )

    def _heartbeat(self) -> Heartbeat:
        hold = self._components.replica_queue

        def comment() -> str:
            if self._at_engine or self._coalescer.follows:
                return "waiting for the engine"
            return f"waiting for a replica, which usually takes {hold.startup_eta_seconds(self._model):.0f} s"

        return Heartbeat(every_seconds=hold.limits.heartbeat_seconds, comment=comment)

    async def _closing(self, work: Awaitable[StartedReply | Followed]) -> StartedReply | Followed:
        """Write the END if the work fails: once heartbeats are sent nobody else does."""
        try:
            return await work
        except BaseException as error:
            self._close_failed(error)
            raise

    def _ready(self) -> tuple[tuple[Endpoint, ...], bool]:
        """Return the replicas of the active revision, True; while there are none, the model's others, False.

        What another revision answers must not be kept under this one's name.
        """
        known = self._components.feed.snapshot.endpoints.get(self._model.name, ())
        current = tuple(endpoint for endpoint in known if endpoint.revision_id == self._model.revision_id)
        return (current, True) if current else (known, False)

    async def _admit(self, policy: CachePolicy, body_bytes: int, *, limited: bool) -> CacheHit | None:
        """Take what the request needs from every limit and budget; the meter gives back what it did not use."""
        lookup = CacheLookup(self._components.prediction_cache, policy, self._caller, self._call, self._model.name)
        stored = lookup.local()
        may_run = stored is None and not policy.only_if_cached
        allowance = self._meter.cost_reservation = cost_estimate.cost_reservation(
            self._components.feed.snapshot.prices,
            self._caller,
            self._call,
            self._model,
            body_bytes,
            self._timeline.request_id,
            runs=may_run,
        )
        demand = AdmissionRequest(
            caller=self._caller,
            model_name=self._model.name,
            request_id=self._timeline.request_id,
            tokens=cost_estimate.reserved_tokens(self._call, self._model, body_bytes) if may_run else 0,
            hold_pico=0 if allowance is None else allowance.held_pico if may_run else allowance.hit_pico,
            cache_key=policy.redis_key(self._caller) if stored is None else None,
            hit_pico=allowance.hit_pico if allowance is not None else 0,
            limited=limited,
        )
        ticket = self._meter.reservation = await self._components.admission.admit(demand)
        if stored is None:
            stored = await lookup.from_redis(ticket.stored)
            if stored is None:
                await ticket.miss()
        if stored is not None and policy.name is not None:
            self._components.prediction_cache.touch(self._caller.tenant_id, policy.name)
        self._timeline.headers.extend(ticket.headers())
        self._timeline.admit_seconds = time.perf_counter() - self._timeline.started
        return stored

    def _tell_cache(self, policy: CachePolicy) -> None:
        self._meter.cache = ("miss", "") if policy.bypass is None else ("bypass", policy.bypass)
        self._timeline.headers.extend(policy.miss_headers())

    def _tell_route(self, reply: EngineReply) -> None:
        replica = keyspace.replica_token(self._caller.tenant_id, reply.choice.replica_id)
        self._timeline.headers += [(b"x-route", reply.choice.reason.encode()), (b"x-replica", replica)]

    def _replay(self, stored: CacheHit) -> Response:
        entry = stored.entry
        self._meter.hit(entry)
        headers = [*hit_headers(self._caller, entry), *self._timeline.headers, *self._receipt_instead(entry)]
        if self._call.stream:
            return Response(status=200, headers=[*SSE, *headers], stream=_at_once(stored.body))
        return Response(status=200, headers=[*JSON, *headers], body=stored.body)

    async def _whole(self, begun: StartedReply | Followed) -> Response:
        if isinstance(begun, Followed):
            return await self._told_whole(begun.entry)
        reply = begun.reply
        reply.close()
        self._tell_route(reply)
        try:
            document = orjson.loads(reply.first)
            usage, whole = self._call.endpoint.usage(document), self._call.endpoint.is_complete(document)
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
            raise EngineFailed("The engine's answer cannot be read. Nothing was charged.", "engine_failed") from None
        if usage is None:  # what it wrote cannot be told; its prompt can
            self._meter.end("complete", 200, self._meter.delivered(), source="estimated")
        else:
            self._meter.end("complete", 200, usage)
        stored = self._land(begun.policy, reply.first if whole else None, usage, self._timeline.engine_seconds * 1000)
        await self._meter.synced()
        told = begun.policy.status_headers(stored=stored)
        receipt = self._receipt(usage) if usage is not None else []
        return Response(status=200, headers=[*JSON, *self._timeline.headers, *told, *receipt], body=reply.first)

    def _receipt(self, usage: Usage) -> Headers:
        prices = self._components.feed.snapshot.prices
        return cost_headers.headers(prices, self._caller.tenant_id, self._model.name, self._timeline.request_id, usage)

    def _receipt_instead(self, entry: Entry, result: Literal["hit", "coalesced"] = "hit") -> Headers:
        prices = self._components.feed.snapshot.prices
        request_id = self._timeline.request_id
        return cost_headers.instead(prices, self._caller.tenant_id, self._model.name, request_id, entry, result=result)

    async def _told_whole(self, entry: Entry | None) -> Response:
        """Answer with what another request got."""
        assert entry is not None, "nobody waits for the pieces of an answer that is not streamed"
        self._meter.followed(entry)
        await self._meter.synced()
        headers = [*JSON, *self._timeline.headers, *self._receipt_instead(entry, "coalesced")]
        return Response(status=200, headers=headers, body=entry.body)

    def _follow(self, followed: Followed, again: Callable[[], Awaitable[StartedReply | Followed]]) -> Response:
        stream = FollowerStream(followed, self._coalescer, self._call, self._meter, again=again, begin=self._stream)
        return Response(
            status=200,
            headers=[*SSE, *self._timeline.headers],
            stream=stream.pieces(),
            heartbeat=self._heartbeat(),
            on_close=stream.close,
            end_with=stream.end_with,
        )

    def _stream(self, begun: StartedReply) -> Response:
        reply, policy = begun.reply, begun.policy
        self._tell_route(reply)
        relay = EngineStream(
            reply,
            self._call.endpoint.stream_parser(keep=policy.writable or self._coalescer.flight is not None),
            self._meter,
            self._timeline,
            include_usage=self._call.include_usage,
            counts=self._call.endpoint.token_counts(self._call.body)
            if self._meter.cost_reservation is not None
            else None,
            land=partial(self._land, policy),
            flight=self._coalescer.flight,
        )
        return Response(
            status=200,
            headers=[*SSE, *self._timeline.headers, *policy.status_headers(stored=False)],
            stream=relay.pieces(),
            heartbeat=self._heartbeat(),
            on_close=relay.close,
            end_with=relay.end_with,
        )

    def _land(self, policy: CachePolicy, body: bytes | None, usage: Usage | None, engine_ms: float) -> bool:
        """Give a whole answer to the prediction cache, then to who follows; say whether it is one to be kept.

        ``body`` None: it cannot be told without streaming.
        """
        stored, entry = False, None
        if usage is not None:
            entry = new_entry(self._caller, self._timeline.request_id, body or b"", usage, engine_ms=engine_ms)
        if entry is not None and body is not None:
            stored = self._keep(policy, entry)
        elif policy.writable:
            metrics.cache_stored("incomplete")
        self._coalescer.complete(entry, stored=stored)
        return stored

    def _keep(self, policy: CachePolicy, entry: Entry) -> bool:
        if not policy.is_storable(self._caller, entry):
            return False
        self._components.prediction_cache.put(entry, partial(policy.cache_write, self._caller, self._model.name, entry))
        return True

    def _close_failed(self, error: BaseException) -> None:
        """Write the END of a request that ends before its answer began, and let who follows try again."""
        self._coalescer.fail(error)
        match error:
            case EngineRefused():
                self._meter.give_up("refused", error.status)
            case GatewayError():
                self._meter.give_up("engine_error", error.status)
            case asyncio.CancelledError() if self._timeline.refusal is not None:
                self._meter.give_up(
                    "refused", self._timeline.refusal.status, self._meter.delivered(), source="estimated"
                )
            case asyncio.CancelledError():
                self._meter.give_up("client_gone", 499, self._meter.delivered(), source="estimated")
            case _:
                self._meter.give_up("engine_error", 500)


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body

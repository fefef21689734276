"""One inference request: the order of its stages, from the prediction cache to the complete response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Literal

import orjson

from caching.entry import Entry
from gateway.admission import cost_estimate
from gateway.admission.controller import AdmissionRequest
from gateway.cache import replay
from gateway.cache.lookup import CacheHit, CacheLookup
from gateway.cache.policy import CachePolicy, policy_for
from gateway.coalescing.coalescer import Coalescer, Followed
from gateway.errors import NOT_NOW, EngineFailed, EngineOverran, GatewayError, internal_error, not_cached
from gateway.metering import cost_headers, refusals
from gateway.metering.meter import Meter
from gateway.pipeline.components import Components
from gateway.protocols.endpoint import Usage
from gateway.request import JSON, Headers, Request, RequestContext, Response
from gateway.streaming.start import StartedReply, StreamStarter, add_route_headers
from gateway.upstream.queue.bounds import QueuedRequest
from gateway.upstream.queue.turns import Waiting
from gateway.upstream.routing import request as routing_request
from routing.router import RoutingRequest
from tenants.isolation import keyspace
from workers.serving.endpoints import Endpoint


class Inference:
    """Runs one checked call for one caller."""

    def __init__(self, components: Components, context: RequestContext) -> None:
        self._components = components
        self._context = context
        self._meter = Meter(components.wal, context)
        self._coalescer: Coalescer[StartedReply] = Coalescer(components.single_flight, context, self._meter)
        call, model = context.call, context.model
        call.body["model"] = model.name
        call.endpoint.clamp(call.body, model.context_length_tokens)

    async def run(self, request: Request, *, limited: bool = True) -> Response:
        """Return the response. ``limited`` False: the request was counted before. Raises GatewayError."""
        context, call = self._context, self._context.call
        policy = policy_for(context.caller, call, context.model, request.headers)
        try:
            hit = await self._admit(policy, len(request.body), limited=limited)
            if hit is not None:
                if call.digest is None and policy.digest is not None:
                    known = self._components.parsed_requests
                    known.put(context.caller, call, context.model, request.body, policy.digest)
                self._meter.hit(hit.entry)
                return replay.replay(context, hit, self._saved_headers(hit.entry, "hit"))
            if policy.only_if_cached:
                raise not_cached(policy.miss_headers())
            self._meter.admitted()
            self._meter.cache = ("miss", "") if policy.bypass is None else ("bypass", policy.bypass)
            context.timeline.headers.extend(policy.miss_headers())
            self._coalescer.prepare(policy, request.disconnect)
            if call.stream:
                return await self._stream(policy, request)
            found = await self._obtain(policy, request)
            return await (self._followed(found) if isinstance(found, Followed) else self._complete(found))
        except BaseException as error:
            self._end_failed(error)
            raise

    async def _admit(self, policy: CachePolicy, body_bytes: int, *, limited: bool) -> CacheHit | None:
        """Take what the request needs from every limit and budget, and look up its response.

        The meter gives back what the request does not use.
        """
        context = self._context
        caller, call, model, timeline = context.caller, context.call, context.model, context.timeline
        trace = timeline.trace
        if trace is not None:
            trace.enter("admission")
        lookup = CacheLookup(self._components.prediction_cache, policy, caller, call, model.name)
        hit = lookup.local()
        may_run = hit is None and not policy.only_if_cached
        cost = self._meter.cost_reservation = cost_estimate.cost_reservation(
            self._components.feed.snapshot.prices, caller, call, model, body_bytes, timeline.request_id, runs=may_run
        )
        if cost is not None:
            cost.may_hit, cost.may_follow = policy.readable, policy.readable and policy.writable
        demand = AdmissionRequest(
            caller=caller,
            model_name=model.name,
            request_id=timeline.request_id,
            tokens=cost_estimate.reserved_tokens(call, model, body_bytes) if may_run else 0,
            hold_pico=0 if cost is None else cost.held_pico if may_run else cost.hit_pico,
            cache_key=policy.redis_key(caller) if hit is None else None,
            hit_pico=cost.hit_pico if cost is not None else 0,
            limited=limited,
        )
        reservation = self._meter.reservation = await self._components.admission.admit(demand)
        if hit is None:
            if trace is not None and reservation.stored is not None:
                trace.enter("cache lookup")
            hit = await lookup.from_redis(reservation.stored)
            if hit is None:
                await reservation.take_for_engine()
        if hit is not None and policy.name is not None:
            self._components.prediction_cache.touch(caller.tenant_id, policy.name)
        timeline.headers.extend(reservation.headers())
        timeline.admit_seconds = time.perf_counter() - timeline.started
        if trace is not None:
            trace.leave()
        return hit

    def _stream(self, policy: CachePolicy, request: Request) -> Awaitable[Response]:
        async def obtain() -> StartedReply | Followed:
            try:
                return await self._obtain(policy, request)
            except BaseException as error:  # once heartbeats are sent nobody else writes the END
                self._end_failed(error)
                raise

        queue = self._components.replica_queue
        return StreamStarter(
            self._context, self._meter, self._coalescer, queue, obtain=obtain, on_complete=self._store
        ).start()

    def _obtain(self, policy: CachePolicy, request: Request) -> Awaitable[StartedReply | Followed]:
        """Return an engine's reply, or the flight of an identical request. Raises GatewayError."""
        return self._coalescer.lead_or_follow(lambda: self._reply(policy, request))

    async def _reply(self, policy: CachePolicy, request: Request) -> StartedReply:
        """Return the first reply; wait for a replica if none is ready. Raises GatewayError."""
        context, timeline = self._context, self._context.timeline
        self._components.feed.snapshot.require_loadable(context.model)
        before = self._coalescer.waited_seconds + timeline.queue_seconds
        ask = routing_request.build(context.call, context.caller, context.model, request.headers)
        self._components.sketches.add(context, ask.prefix)
        queued = QueuedRequest(
            caller=context.caller,
            model=context.model,
            size_bytes=len(request.body),
            tokens=ask.prefix.tokens + ask.max_new_tokens,
            waited_seconds=before,
        )
        try:
            return await self._send(ask, queued, policy)
        except NOT_NOW as failure:
            self._meter.wait()
            return await self._components.replica_queue.wait(queued, failure, lambda: self._send(ask, queued, policy))
        finally:
            timeline.queue_seconds += queued.waited_seconds - before

    async def _send(self, ask: RoutingRequest, queued: QueuedRequest, policy: CachePolicy) -> StartedReply:
        """Return the first reply of the replicas that are ready. Raises GatewayError, NOT_NOW included."""
        context, timeline = self._context, self._context.timeline
        try:
            salt = keyspace.cache_salt(context.caller, context.model.name)
            where = Waiting(request=ask, queued=queued, ready=self._ready_replicas)
            reply = await self._components.dispatcher.send(context, where, salt, self._meter)
        except NOT_NOW:
            timeline.waits_for = "replica"
            if timeline.trace is not None:
                timeline.trace.enter("queue")
            self._meter.engine_failed()
            raise
        if reply.revision_digest != context.model.digest:
            policy = policy.of_revision(context.caller, context.call.path, reply.revision_digest)
        return StartedReply(reply=reply, policy=policy)

    def _ready_replicas(self) -> Sequence[Endpoint]:
        """Return the model's ready replicas in the caller's regions; during a rollout they are of two revisions."""
        context = self._context
        return self._components.feed.snapshot.endpoints_in(context.model.name, context.caller.allowed_regions)

    async def _complete(self, started: StartedReply) -> Response:
        """Meter and store an engine's complete response, and return it."""
        reply, context = started.reply, self._context
        endpoint, timeline = context.call.endpoint, context.timeline
        reply.close()
        add_route_headers(context, reply)
        try:
            document = orjson.loads(reply.first)
            usage, complete = endpoint.usage(document), endpoint.is_complete(document)
            self._meter.finish_reason = endpoint.finish_reason(document)
            client_body = endpoint.client_body(reply.first)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            reply.broke()
            raise EngineFailed(
                "The engine's response is not valid. Nothing was charged; try again.", "engine_failed"
            ) from None
        if usage is None:  # the completion's tokens are unknown; the prompt's are estimated
            self._meter.end("complete", 200, self._meter.partial_usage(), source="estimated")
        else:
            reply.learn(usage)
            self._meter.end("complete", 200, usage)
        body = reply.first if complete else None
        stored = self._store(started.policy, body, usage, timeline.engine_seconds * 1000)
        await self._meter.synced()
        status, cost = started.policy.status_headers(stored=stored), self._cost_headers(usage)
        return Response(status=200, headers=[*JSON, *timeline.headers, *status, *cost], body=client_body)

    async def _followed(self, followed: Followed) -> Response:
        """Meter and return the response that another request received."""
        entry = followed.entry
        assert entry is not None, "only a streamed request follows a flight piece by piece"
        self._meter.end_follower(entry)
        await self._meter.synced()
        headers = [*JSON, *self._context.timeline.headers, *self._saved_headers(entry, "coalesced")]
        return Response(status=200, headers=headers, body=entry.body)

    def _store(self, policy: CachePolicy, body: bytes | None, usage: Usage | None, engine_ms: float) -> bool:
        """Store a complete response, then end the flight with it; return whether it is stored.

        ``body`` None: the response has no form other than its own stream.
        """
        context = self._context
        entry = replay.entry_of(context, body, usage, engine_ms)
        stored = replay.store(self._components.prediction_cache, policy, context, entry, body)
        self._coalescer.complete(entry, stored_as=policy.name if stored else None)
        return stored

    def _cost_headers(self, usage: Usage | None) -> Headers:
        if usage is None:
            return []
        context = self._context
        prices, request_id = self._components.feed.snapshot.prices, context.timeline.request_id
        return cost_headers.headers(prices, context.caller, context.model.name, request_id, usage)

    def _saved_headers(self, entry: Entry, result: Literal["hit", "coalesced"]) -> Headers:
        context = self._context
        prices, request_id = self._components.feed.snapshot.prices, context.timeline.request_id
        return cost_headers.headers_without_engine(
            prices, context.caller, context.model.name, request_id, entry, result=result
        )

    def _end_failed(self, error: BaseException) -> None:
        """Write the END of a request that failed before its response began, and let its followers try again."""
        self._coalescer.fail(error)
        meter, timeline = self._meter, self._context.timeline
        refusal = timeline.refusal
        match error:
            case EngineOverran():
                meter.give_up("engine_error", error.status, meter.partial_usage(), source="estimated", error=error)
            case GatewayError():
                status = 200 if meter.restore_followed() else error.status
                meter.give_up(refusals.state_of(error), status, error=error)
            case asyncio.CancelledError() if refusal is not None:
                meter.give_up("refused", refusal.status, meter.partial_usage(), source="estimated", error=refusal)
            case asyncio.CancelledError():
                meter.give_up("client_gone", 499, meter.partial_usage(), source="estimated")
            case _:
                meter.give_up("engine_error", 500, error=internal_error())
        if isinstance(error, GatewayError):  # a stream that has begun ends here and never reaches the handler
            self._components.refusals.record(timeline, error)

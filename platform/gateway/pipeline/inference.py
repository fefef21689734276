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
from gateway.admission.controller import Demand
from gateway.cache import policy
from gateway.cache.lookup import Lookup, Stored
from gateway.cache.policy import Answer
from gateway.coalescing.coalescer import Course, Followed
from gateway.errors import NOT_NOW, EngineFailed, EngineRefused, GatewayError, not_cached
from gateway.metering import cost_headers
from gateway.metering.meter import Meter
from gateway.pipeline.components import Parts
from gateway.protocols.request_body import Call
from gateway.protocols.usage import Usage
from gateway.request import JSON, SSE, Headers, Heartbeat, Incoming, Outgoing, Trace
from gateway.streaming.engine_stream import Relay
from gateway.streaming.follower_stream import FollowedStream
from gateway.streaming.pending_stream import LateStream, within
from gateway.upstream import routing_request
from gateway.upstream.dispatcher import Reply
from gateway.upstream.wait_queue import Guest
from routing.router import RoutingRequest
from tenants import keyspace
from tenants.snapshot import Caller
from workers.serving.endpoints import Endpoint

log = logging.getLogger(__name__)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A reply that has begun, and where the answer may be kept."""

    reply: Reply
    answer: Answer


class Inference:
    """Runs one checked call for one caller."""

    def __init__(self, parts: Parts, caller: Caller, call: Call, model: ServedModel, trace: Trace) -> None:
        self._parts = parts
        self._caller = caller
        self._call = call
        self._model = model
        self._trace = trace
        self._meter = Meter(parts.wal, trace, caller, call, model)
        self._course: Course[Begun] = Course(parts.single_flight, caller, call, model, self._meter, trace)
        #: When it began to wait for a replica; None while it does not have to.
        self._held_since: float | None = None
        #: Some replica has it, so that its client waits for an engine.
        self._at_engine = False
        call.body["model"] = model.name
        call.wire.clamp(call.body, model.context_length_tokens)

    async def run(self, incoming: Incoming, *, limited: bool = True) -> Outgoing:
        """Answer the call. ``limited`` False: its request was already counted. Raises GatewayError."""
        answer = policy.of(self._caller, self._call, self._model, incoming.headers)
        try:
            stored = await self._admit(answer, len(incoming.body), limited=limited)
            if stored is not None:
                if self._call.digest is None and answer.digest is not None:
                    self._parts.repeats.note(self._caller, self._call, self._model, incoming.body, answer.digest)
                return self._replay(stored)
            if answer.only_if_cached:
                raise not_cached(policy.told_of_forward(answer))
            self._meter.admitted()
            self._tell_cache(answer)
            self._course.set_out(answer, incoming.departure)
            if self._call.stream:
                return await self._streamed(answer, incoming)
            return await self._whole(await self._obtain(answer, incoming))
        except BaseException as error:
            self._close_failed(error)
            raise

    def _obtain(self, answer: Answer, incoming: Incoming) -> Awaitable[Begun | Followed]:
        """Return the first reply, or the answer of an identical request in flight. Raises GatewayError."""
        return self._course.obtain(lambda: self._reply(answer, incoming))

    async def _reply(self, answer: Answer, incoming: Incoming) -> Begun:
        """Return the first reply, of a replica that is still to come if need be. Raises GatewayError."""
        ask = routing_request.ask(self._call, self._caller, self._model, incoming.headers)
        try:
            return await self._begin(ask, answer)
        except NOT_NOW as failure:
            self._meter.wait()
            self._held_since = time.perf_counter()
            guest = Guest(
                tenant_id=self._caller.tenant_id,
                model=self._model,
                size_bytes=len(incoming.body),
                tokens=ask.prefix.tokens + ask.max_new_tokens,
                waited_seconds=self._course.waited_seconds,
            )
            return await self._parts.hold.until(guest, failure, lambda: self._begin(ask, answer))

    async def _begin(self, ask: RoutingRequest, answer: Answer) -> Begun:
        """Return the first reply of the replicas that are ready now. Raises GatewayError, of it NOT_NOW."""
        if self._held_since is not None:
            self._trace.queue_seconds = time.perf_counter() - self._held_since
        endpoints, current = self._ready()
        self._at_engine = True
        try:
            reply = await self._parts.dispatcher.send(
                self._call,
                ask,
                keyspace.cache_salt(self._caller, self._model.name),
                endpoints,
                self._meter,
                self._trace,
            )
        except NOT_NOW:
            self._at_engine = False
            self._meter.unasked()
            raise
        return Begun(reply=reply, answer=answer if current else policy.not_kept(answer))

    async def _streamed(self, answer: Answer, incoming: Incoming) -> Outgoing:
        """Answer with a stream, which begins before its reply does when that takes longer than a heartbeat.

        Until the engine's first byte the reply may still come from another replica.
        """

        def obtain() -> Awaitable[Begun | Followed]:
            return self._closing(self._obtain(answer, incoming))

        def begin(found: Begun | Followed) -> Outgoing:
            return self._stream(found) if isinstance(found, Begun) else self._follow(found, obtain)

        begun = asyncio.ensure_future(obtain())
        heartbeat = self._heartbeat()
        late = LateStream(begun, begin, heartbeat=heartbeat, error_event=self._call.wire.error_event)
        try:
            if await within(begun, heartbeat.every_seconds):
                return begin(begun.result())
        except asyncio.CancelledError:
            late.close()  # the reply may have begun at the very moment at which its client left
            raise
        return Outgoing(
            status=200,
            headers=[*SSE, *self._trace.headers],
            stream=late.pieces(),
            heartbeat=heartbeat,
            on_close=late.close,
            end_with=late.end_with,
        )

    def _heartbeat(self) -> Heartbeat:
        hold = self._parts.hold

        def comment() -> str:
            if self._at_engine or self._course.follows:
                return "waiting for the engine"
            return f"waiting for a replica, which usually takes {hold.eta_seconds(self._model):.0f} s"

        return Heartbeat(every_seconds=hold.limits.heartbeat_seconds, comment=comment)

    async def _closing(self, work: Awaitable[Begun | Followed]) -> Begun | Followed:
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
        known = self._parts.feed.view.endpoints.get(self._model.name, ())
        current = tuple(endpoint for endpoint in known if endpoint.revision_id == self._model.revision_id)
        return (current, True) if current else (known, False)

    async def _admit(self, answer: Answer, body_bytes: int, *, limited: bool) -> Stored | None:
        """Take what the request needs from every limit and budget; the meter gives back what it did not use."""
        lookup = Lookup(self._parts.shelf, answer, self._caller, self._call, self._model.name)
        stored = lookup.at_hand()
        may_run = stored is None and not answer.only_if_cached
        allowance = self._meter.allowance = cost_estimate.allowance(
            self._parts.feed.view.prices,
            self._caller,
            self._call,
            self._model,
            body_bytes,
            self._trace.request_id,
            runs=may_run,
        )
        demand = Demand(
            caller=self._caller,
            model_name=self._model.name,
            request_id=self._trace.request_id,
            tokens=cost_estimate.reserved_tokens(self._call, self._model, body_bytes) if may_run else 0,
            hold_pico=0 if allowance is None else allowance.held_pico if may_run else allowance.hit_pico,
            answer_key=policy.redis_key(answer, self._caller) if stored is None else None,
            hit_pico=allowance.hit_pico if allowance is not None else 0,
            limited=limited,
        )
        ticket = self._meter.ticket = await self._parts.admission.admit(demand)
        if stored is None:
            stored = await lookup.in_redis(ticket.stored)
            if stored is None:
                await ticket.miss()
        if stored is not None and answer.name is not None:
            self._parts.shelf.given(self._caller.tenant_id, answer.name)
        self._trace.headers.extend(ticket.headers())
        self._trace.admit_seconds = time.perf_counter() - self._trace.started
        return stored

    def _tell_cache(self, answer: Answer) -> None:
        self._meter.cache = ("miss", "") if answer.bypass is None else ("bypass", answer.bypass)
        self._trace.headers.extend(policy.told_of_forward(answer))

    def _tell_route(self, reply: Reply) -> None:
        replica = keyspace.replica_token(self._caller.tenant_id, reply.choice.replica_id)
        self._trace.headers += [(b"x-route", reply.choice.reason.encode()), (b"x-replica", replica)]

    def _replay(self, stored: Stored) -> Outgoing:
        entry = stored.entry
        self._meter.hit(entry)
        headers = [*policy.told_of_hit(self._caller, entry), *self._trace.headers, *self._receipt_instead(entry)]
        if self._call.stream:
            return Outgoing(status=200, headers=[*SSE, *headers], stream=_at_once(stored.told))
        return Outgoing(status=200, headers=[*JSON, *headers], body=stored.told)

    async def _whole(self, begun: Begun | Followed) -> Outgoing:
        if isinstance(begun, Followed):
            return await self._told_whole(begun.entry)
        reply = begun.reply
        reply.close()
        self._tell_route(reply)
        try:
            document = orjson.loads(reply.first)
            usage, whole = self._call.wire.usage(document), self._call.wire.is_whole(document)
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError):
            raise EngineFailed("The engine's answer cannot be read. Nothing was charged.", "engine_failed") from None
        if usage is None:  # what it wrote cannot be told; its prompt can
            self._meter.end("complete", 200, self._meter.delivered(), source="estimated")
        else:
            self._meter.end("complete", 200, usage)
        stored = self._land(begun.answer, reply.first if whole else None, usage, self._trace.engine_seconds * 1000)
        await self._meter.synced()
        told = policy.status(begun.answer, stored=stored)
        receipt = self._receipt(usage) if usage is not None else []
        return Outgoing(status=200, headers=[*JSON, *self._trace.headers, *told, *receipt], body=reply.first)

    def _receipt(self, usage: Usage) -> Headers:
        prices = self._parts.feed.view.prices
        return cost_headers.headers(prices, self._caller.tenant_id, self._model.name, self._trace.request_id, usage)

    def _receipt_instead(self, entry: Entry, result: Literal["hit", "coalesced"] = "hit") -> Headers:
        prices = self._parts.feed.view.prices
        request_id = self._trace.request_id
        return cost_headers.instead(prices, self._caller.tenant_id, self._model.name, request_id, entry, result=result)

    async def _told_whole(self, entry: Entry | None) -> Outgoing:
        """Answer with what another request got."""
        assert entry is not None, "nobody waits for the pieces of an answer that is not streamed"
        self._meter.followed(entry)
        await self._meter.synced()
        headers = [*JSON, *self._trace.headers, *self._receipt_instead(entry, "coalesced")]
        return Outgoing(status=200, headers=headers, body=entry.body)

    def _follow(self, followed: Followed, again: Callable[[], Awaitable[Begun | Followed]]) -> Outgoing:
        stream = FollowedStream(followed, self._course, self._call, self._meter, again=again, begin=self._stream)
        return Outgoing(
            status=200,
            headers=[*SSE, *self._trace.headers],
            stream=stream.pieces(),
            heartbeat=self._heartbeat(),
            on_close=stream.leave,
            end_with=stream.end_with,
        )

    def _stream(self, begun: Begun) -> Outgoing:
        reply, answer = begun.reply, begun.answer
        self._tell_route(reply)
        relay = Relay(
            reply,
            self._call.wire.reader(keep=answer.writable or self._course.flight is not None),
            self._meter,
            self._trace,
            include_usage=self._call.include_usage,
            counts=self._call.wire.counts(self._call.body) if self._meter.allowance is not None else None,
            land=partial(self._land, answer),
            flight=self._course.flight,
        )
        return Outgoing(
            status=200,
            headers=[*SSE, *self._trace.headers, *policy.status(answer, stored=False)],
            stream=relay.pieces(),
            heartbeat=self._heartbeat(),
            on_close=relay.leave,
            end_with=relay.end_with,
        )

    def _land(self, answer: Answer, body: bytes | None, usage: Usage | None, engine_ms: float) -> bool:
        """Give a whole answer to the prediction cache, then to who follows; say whether it is one to be kept.

        ``body`` None: it cannot be told without streaming.
        """
        stored, entry = False, None
        if usage is not None:
            entry = policy.entry_of(self._caller, self._trace.request_id, body or b"", usage, engine_ms=engine_ms)
        if entry is not None and body is not None:
            stored = self._keep(answer, entry)
        elif answer.writable:
            metrics.cache_stored("incomplete")
        self._course.land(entry, stored=stored)
        return stored

    def _keep(self, answer: Answer, entry: Entry) -> bool:
        if not policy.may_be_kept(answer, self._caller, entry):
            return False
        self._parts.shelf.keep(entry, partial(policy.deposit, answer, self._caller, self._model.name, entry))
        return True

    def _close_failed(self, error: BaseException) -> None:
        """Write the END of a request that ends before its answer began, and let who follows try again."""
        self._course.fail(error)
        match error:
            case EngineRefused():
                self._meter.give_up("refused", error.status)
            case GatewayError():
                self._meter.give_up("engine_error", error.status)
            case asyncio.CancelledError() if self._trace.refusal is not None:
                self._meter.give_up("refused", self._trace.refusal.status, self._meter.delivered(), source="estimated")
            case asyncio.CancelledError():
                self._meter.give_up("client_gone", 499, self._meter.delivered(), source="estimated")
            case _:
                self._meter.give_up("engine_error", 500)


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body

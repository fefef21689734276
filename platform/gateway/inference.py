"""One inference request, from the prediction cache to the last byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass

import orjson

from billing.records import State
from caching import fingerprint, replay
from caching.entry import MAX_ENTRY_BYTES, Entry, decode, encode
from caching.errors import NotReplayable
from catalogue.registry import ServedModel
from gateway import errors, prompts, streaming, telemetry
from gateway.dispatch import FAILURES, Reply
from gateway.errors import NOT_NOW, EngineFailed, EngineGone, EngineRefused, GatewayError, NotReady, Unavailable
from gateway.hold import Guest
from gateway.late import LateStream, within
from gateway.messages import JSON, SSE, Incoming, Outgoing, Trace
from gateway.metering import NOTHING, Meter, Usage, usage_of
from gateway.parts import Parts
from gateway.schemas import Call
from routing.router import Ask
from tenants import keyspace
from tenants.errors import KeyRefused
from tenants.snapshot import Caller
from workers.endpoints import Endpoint

log = logging.getLogger(__name__)

#: What a client of a cut stream is told; what it received was metered.
STREAM_BROKEN = EngineFailed("The engine stopped in the middle of its answer.", "engine_failed_mid_stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Where an answer is kept: its name in the caller's scope, None when it may not be kept, and why."""

    name: bytes | None
    bypass: fingerprint.Bypass | None

    @property
    def readable(self) -> bool:
        """``no-cache`` asks for a fresh answer, which is then kept."""
        return self.name is not None and self.bypass is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
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
        call.body["model"] = model.name

    async def run(self, incoming: Incoming, *, limited: bool = True) -> Outgoing:
        """Answer the call. ``limited`` False: its request was already counted. Raises GatewayError."""
        answer = self._name(incoming.headers)
        stored = await self._admit(answer, limited=limited)
        if stored is not None:
            return self._replay(stored)
        self._tell_cache("bypass" if answer.bypass else "miss", answer.bypass or "")
        ask = prompts.ask(self._call, self._caller, self._model, incoming.headers)
        try:
            try:
                begun = await self._begin(ask, answer)
            except NOT_NOW as failure:
                return await self._hold(failure, ask, answer, len(incoming.body))
            return self._stream(begun) if self._call.stream else await self._whole(begun)
        except BaseException as error:
            self._close_failed(error)
            raise

    async def _begin(self, ask: Ask, answer: Answer) -> Begun:
        """Return the first reply of the replicas that are ready now. Raises GatewayError, of it NOT_NOW."""
        endpoints, current = self._ready()
        reply = await self._parts.dispatcher.send(
            self._call,
            ask,
            keyspace.cache_salt(self._caller, self._model.name),
            endpoints,
            self._meter,
            self._trace,
        )
        return Begun(reply=reply, answer=answer if current else Answer(name=None, bypass=answer.bypass))

    async def _hold(self, failure: NotReady | EngineGone, ask: Ask, answer: Answer, size_bytes: int) -> Outgoing:
        """Answer once a replica can. A stream that waits for longer than a heartbeat begins without its reply."""
        hold = self._parts.hold
        guest = Guest(
            tenant_id=self._caller.tenant_id,
            model=self._model,
            size_bytes=size_bytes,
            tokens=ask.chain.tokens + ask.max_new_tokens,
        )
        waiting = hold.until(guest, failure, lambda: self._begin_again(ask, answer))
        if not self._call.stream:
            return await self._whole(await waiting)
        begun = asyncio.ensure_future(self._closing(waiting))
        late = LateStream(
            begun,
            self._stream,
            comment=lambda: f"waiting for a replica, which usually takes {hold.eta_seconds(self._model):.0f} s",
            every_seconds=hold.limits.heartbeat_seconds,
        )
        try:
            if await within(begun, hold.limits.heartbeat_seconds):
                return self._stream(begun.result())
        except asyncio.CancelledError:
            late.close()  # the reply may have begun at the very moment at which its client left
            raise
        return Outgoing(status=200, headers=[*SSE, *self._trace.headers], stream=late.pieces(), on_close=late.close)

    async def _begin_again(self, ask: Ask, answer: Answer) -> Begun:
        """Do as :meth:`_begin`, for a caller who may have been locked out meanwhile. Raises Unauthorized too."""
        try:
            self._parts.feed.view.callers.caller(self._caller.key_public_id)
        except KeyRefused as refusal:
            raise errors.unauthorized(refusal) from None
        return await self._begin(ask, answer)

    async def _closing(self, work: Awaitable[Begun]) -> Begun:
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

    def _name(self, headers: Mapping[str, str]) -> Answer:
        policy = self._caller.policy
        bypass = fingerprint.bypass_reason(self._call.body, _mode(policy.cache_mode), headers.get("cache-control", ""))
        if bypass not in {None, "no-cache"}:
            return Answer(name=None, bypass=bypass)
        name = keyspace.prediction_mac(
            self._caller,
            fingerprint.FORMAT,
            self._call.endpoint.encode(),
            self._model.digest.encode(),
            fingerprint.canonical(self._call.body),
        )
        return Answer(name=name, bypass=bypass)

    async def _admit(self, answer: Answer, *, limited: bool) -> Entry | None:
        key = self._redis_key(answer) if answer.readable else None
        if not limited:
            return _unpack(answer, await self._parts.admission.find(key)) if key else None
        admitted = await self._parts.admission.admit(self._caller, key)
        if admitted.verdict is not None:
            self._trace.headers.extend(admitted.verdict.headers())
        return _unpack(answer, admitted.stored)

    def _redis_key(self, answer: Answer) -> str:
        assert answer.name is not None
        return keyspace.redis_key(self._caller, "prediction", answer.name.hex())

    def _tell_cache(self, result: str, reason: str) -> None:
        self._meter.cache = ("bypass" if result == "bypass" else "miss", reason)
        self._trace.headers.append((b"x-cache", result.encode()))
        if reason:
            self._trace.headers.append((b"x-cache-reason", reason.encode()))

    def _tell_route(self, reply: Reply) -> None:
        self._trace.headers.append((b"x-route", reply.choice.reason.encode()))

    def _replay(self, entry: Entry) -> Outgoing:
        self._meter.hit(entry)
        headers = [(b"x-cache", b"hit"), (b"age", str(entry.age_seconds()).encode()), *self._trace.headers]
        if not self._call.stream:
            return Outgoing(status=200, headers=[*JSON, *headers], body=entry.body)
        events = replay.stream(orjson.loads(entry.body), include_usage=self._call.include_usage)
        return Outgoing(status=200, headers=[*SSE, *headers], stream=_at_once(b"".join(events)))

    async def _whole(self, begun: Begun) -> Outgoing:
        reply = begun.reply
        reply.close()
        self._tell_route(reply)
        try:
            document = orjson.loads(reply.first)
            usage, whole = usage_of(document.get("usage") or {}), replay.is_whole(document)
        except (orjson.JSONDecodeError, AttributeError):
            raise EngineFailed("The engine's answer cannot be read. Nothing was charged.", "engine_failed") from None
        self._meter.end("complete", 200, usage)
        if whole:
            self._keep(begun.answer, reply.first, usage)
        await self._meter.synced()
        return Outgoing(status=200, headers=[*JSON, *self._trace.headers], body=reply.first)

    def _stream(self, begun: Begun) -> Outgoing:
        reply, answer = begun.reply, begun.answer
        self._tell_route(reply)
        tally = streaming.Tally(keep=answer.name is not None)
        return Outgoing(
            status=200,
            headers=[*SSE, *self._trace.headers],
            stream=self._relay(reply, answer, tally),
            on_close=lambda: self._leave(reply, tally),
        )

    async def _relay(self, reply: Reply, answer: Answer, tally: streaming.Tally) -> AsyncIterator[bytes]:
        """Pass the events on. The END is written before the last byte; :meth:`_leave` writes it for a cut stream."""
        splitter = streaming.EventSplitter()
        try:
            async for piece in streaming.pieces(reply.first, reply.rest()):
                passed = self._pass(splitter, piece, tally)
                if passed:
                    yield passed
                if tally.done or tally.failed:
                    break
            if tally.done:
                await self._settle(tally, reply, answer)
                yield replay.DONE
                return
        except FAILURES as error:
            log.warning("replica %s broke a stream: %s", reply.choice.replica_id, error)
            telemetry.engine_failed(self._model.name, error)
        except Unavailable as error:  # the usage log is full: what cannot be metered is not sent
            yield error.event()
            return
        except Exception:
            log.exception("request %s failed in the middle of its stream", self._trace.request_id)
        self._end_cut("engine_error", tally, reply)
        yield STREAM_BROKEN.event()

    def _leave(self, reply: Reply, tally: streaming.Tally) -> None:
        """End a stream for good; if nothing ended it before, its client left."""
        reply.close()
        self._end_cut("client_gone", tally, reply)

    def _pass(self, splitter: streaming.EventSplitter, piece: bytes, tally: streaming.Tally) -> bytes:
        """Return the bytes of this piece that the client gets; its end and its errors are told by us."""
        out = []
        for event in splitter.feed(piece):
            kind = streaming.read(event, tally, max_kept_bytes=MAX_ENTRY_BYTES)
            if kind == "content":
                self._meter.streamed(1)
            if kind in {"head", "content"} or (kind == "usage" and self._call.include_usage):
                out.append(event + streaming.SEPARATOR)
        return b"".join(out)

    async def _settle(self, tally: streaming.Tally, reply: Reply, answer: Answer) -> None:
        if tally.usage is None:
            self._end_cut("complete", tally, reply)
            return
        usage = usage_of(tally.usage)
        self._meter.end("complete", 200, usage)
        if tally.keep:
            try:
                whole = orjson.dumps(replay.fold(tally.events))
            except NotReplayable as part:
                log.warning("an answer is not kept: %s", part)
            else:
                self._keep(answer, whole, usage)
        await self._meter.synced()

    def _keep(self, answer: Answer, body: bytes, usage: Usage) -> None:
        if answer.name is None:
            return
        entry = Entry.now(
            body=body,
            prompt_tokens=usage.prompt_tokens + usage.cached_prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
        value = encode(answer.name, entry, keyspace.value_mac)
        if value is not None:
            ttl = self._caller.policy.cache_ttl_seconds
            self._parts.admission.store(self._redis_key(answer), value, ttl)

    def _end_cut(self, state: State, tally: streaming.Tally, reply: Reply) -> None:
        """Charge a stream whose usage the engine did not tell: the estimated prompt and what was passed on.

        A stream that passed nothing on is free.
        """
        if tally.usage is not None:
            self._meter.give_up(state, 200, usage_of(tally.usage))
        elif not self._meter.streamed_tokens:
            self._meter.give_up(state, 200, NOTHING, source="streamed")
        else:
            cached = min(reply.choice.warm_tokens, reply.prompt_tokens)
            usage = Usage(
                prompt_tokens=reply.prompt_tokens - cached,
                cached_prompt_tokens=cached,
                completion_tokens=self._meter.streamed_tokens,
            )
            self._meter.give_up(state, 200, usage, source="streamed")

    def _close_failed(self, error: BaseException) -> None:
        match error:
            case EngineRefused():
                self._meter.give_up("refused", error.status)
            case GatewayError():
                self._meter.give_up("engine_error", error.status)
            case asyncio.CancelledError():
                self._meter.give_up("client_gone", 499, source="estimated")
            case _:
                self._meter.give_up("engine_error", 500)


def _mode(text: str) -> fingerprint.CacheMode:
    return "all" if text == "all" else "deterministic" if text == "deterministic" else "off"


def _unpack(answer: Answer, stored: bytes | None) -> Entry | None:
    return decode(answer.name, stored, keyspace.value_mac) if stored and answer.name else None


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body

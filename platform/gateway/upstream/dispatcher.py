"""Send a request to the chosen replica, and retry on another one if that fails before its first byte."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from uuid import UUID

import msgspec

from gateway import errors, metrics
from gateway.control_plane.in_flight import InFlight
from gateway.errors import EngineFailed, EngineGone, EngineOverran, EngineRefused, GatewayError
from gateway.metering.meter import Meter
from gateway.protocols.endpoint import Usage
from gateway.request import RequestContext
from gateway.request_trace import EngineCall
from gateway.upstream import connection, overrun, unusable_output
from gateway.upstream.client import UpstreamClient
from gateway.upstream.connection import (
    ConnectFailed,
    ConnectionLost,
    ReadTimeout,
    ResponseTooLarge,
    UpstreamError,
    UpstreamResponse,
)
from gateway.upstream.queue.bounds import QueueBounds
from gateway.upstream.queue.turns import Turn, Turns, Waiting
from gateway.upstream.rollout_outcomes import RolloutOutcomes
from gateway.upstream.routing.decision_log import DecisionLog
from gateway.upstream.suspect_requests import MAX_FAILED_ENGINES, SuspectRequests
from routing import explanation
from routing.explanation import PrefixMatch
from routing.router import AnswerStart, Choice, Router, RoutingRequest
from workers.serving.endpoints import Endpoint

log = logging.getLogger(__name__)

#: How long a replica that failed is avoided, unless no other is left, seconds.
AVOID_SECONDS = 2.0
MAX_ATTEMPTS = 3


class WrongStatus(UpstreamError):
    """The engine's response is neither a success nor a rejection of the request."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One request, for every replica that it is tried on."""

    context: RequestContext
    request: RoutingRequest
    salt: str
    payload: bytes
    #: What the payload calls an adapter; empty for other models.
    engine_name: str
    meter: Meter
    turn: Turn

    def on(self, endpoint: Endpoint) -> _Dispatch:
        """Return it with a payload for this engine: after a renaming, replicas may know an adapter by two names."""
        name = endpoint.engine_name
        if name == self.engine_name:
            return self
        payload = _payload(self.context, self.salt, self.meter, name)
        return msgspec.structs.replace(self, payload=payload, engine_name=name)

    def without_salt(self, answer: bytes) -> bytes:
        """Return an engine's answer without the cache salt, which no client may learn, and its name of an adapter.

        The earlier name of a renamed model stays: it may be any word of the answer.
        """
        if self.engine_name and self.context.model.base:
            answer = answer.replace(self.engine_name.encode(), self.context.model.name.encode())
        return answer.replace(self.salt.encode(), b"...")


class EngineReply(msgspec.Struct, kw_only=True, eq=False):
    """A response of an engine that has started: the whole body, or the first chunk of a stream.

    The owner must call :meth:`close`, which also stops an engine that is not done.
    """

    choice: Choice
    revision_digest: str
    first: bytes
    #: Estimate of the whole prompt.
    prompt_tokens: int
    response: UpstreamResponse
    #: Ends the count of the request in flight.
    finish: Callable[[], None]
    #: Tells the router what the answer says of itself.
    learn: Callable[[Usage], None]
    #: Records that the stream came to its end, or that the engine failed in the middle of it.
    succeeded: Callable[[], None]
    failed: Callable[[], None]
    #: Counts the answer, once it broke off or proved not valid, where a rollout of the replica is open; once.
    broke: Callable[[], None]
    closed: bool = False

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield the chunks after the first one."""
        while piece := await self.response.read():
            yield piece

    def close(self, *, answered: bool = False) -> None:
        """Release the connection and end the count of the request. Idempotent.

        ``answered``: the stream's last event has arrived, so the connection may be reused.
        """
        if not self.closed:
            self.closed = True
            self.response.close(answered=answered)
            self.finish()
            if answered:
                self.succeeded()


class Dispatcher:
    """Chooses replicas with the router and sends requests to their engines."""

    def __init__(
        self,
        upstream: UpstreamClient,
        router: Router,
        in_flight: InFlight,
        bounds: QueueBounds,
        decisions: DecisionLog,
        outcomes: RolloutOutcomes,
    ) -> None:
        self._upstream = upstream
        self._router = router
        self._in_flight = in_flight
        self._decisions = decisions
        self._outcomes = outcomes
        self._avoid_until: dict[UUID, float] = {}
        self._suspect_requests = SuspectRequests()
        self.turns = Turns(router, in_flight, bounds, self._usable)

    async def send(self, context: RequestContext, waiting: Waiting, salt: str, meter: Meter) -> EngineReply:
        """Return the first reply that starts; wait for it while every replica is full.

        A request on which two engines fail is not sent to a third. One that overran is not sent to another at all.
        Raises EngineRefused, EngineFailed, NotReady, Unavailable.
        """
        self._suspect_requests.require_trusted(context)
        if context.timeline.failed_engines >= MAX_FAILED_ENGINES:
            raise errors.no_replica_ready(context.model.name)
        turn = self.turns.at_once(waiting) or await self._wait_for_turn(context, waiting, meter)
        context.timeline.waits_for = "engine"
        try:
            engine_name = next((each.engine_name for each in turn.endpoints), "")
            payload = _payload(context, salt, meter, engine_name)
        except BaseException:
            self.turns.give_back(turn)
            raise
        request = waiting.request
        dispatch = _Dispatch(
            context=context,
            request=request,
            salt=salt,
            payload=payload,
            engine_name=engine_name,
            meter=meter,
            turn=turn,
        )
        try:
            return await self._send(dispatch)
        except BaseException:
            turn.used(0, 0)
            raise

    async def _wait_for_turn(self, context: RequestContext, waiting: Waiting, meter: Meter) -> Turn:
        meter.wait()
        context.timeline.waits_for = "room"
        if context.timeline.trace is not None:
            context.timeline.trace.enter("queue")
        return await self.turns.wait(waiting)

    async def _send(self, dispatch: _Dispatch) -> EngineReply:
        context, turn = dispatch.context, dispatch.turn
        left: dict[UUID, Endpoint] = {endpoint.replica_id: endpoint for endpoint in turn.endpoints}
        timeline = context.timeline
        failures: list[UpstreamError] = []
        suspects: list[UUID] = []
        for attempt in range(MAX_ATTEMPTS):
            choice = self._another(dispatch, left) if attempt else turn.choice
            if choice is None:
                break
            endpoint = left.pop(choice.replica_id)
            if attempt:
                metrics.retried(timeline.model)
            try:
                reply = await self._try(endpoint, choice, dispatch.on(endpoint), self._explained(choice, context))
            except UpstreamError as error:
                failures.append(error)
                metrics.engine_failed(timeline.model, error.reason)
                if isinstance(error, ReadTimeout | ResponseTooLarge):
                    raise _overran(error, dispatch) from None
                if _may_be_its_fault(error):
                    dispatch.meter.attempt_failed()
                    timeline.failed_engines += 1
                    self._suspect_requests.engine_failed(context, endpoint)
                if isinstance(error, WrongStatus):
                    suspects.append(choice.replica_id)
                else:
                    self._avoid_for_a_while(choice.replica_id)
                log.warning("replica %s failed before its first byte: %s", choice.replica_id, _description(error))
            else:
                # Another replica served the request, so the request did not cause the wrong status.
                self._avoid_for_a_while(*suspects)
                if not context.call.stream:
                    reply.succeeded()
                return reply
        if not failures:
            raise errors.no_replica_ready(context.model.name)
        raise _failed(failures, timeline.failed_engines)

    def _avoid_for_a_while(self, *replicas: UUID) -> None:
        until = time.monotonic() + AVOID_SECONDS
        self._avoid_until.update(dict.fromkeys(replicas, until))

    def _another(self, dispatch: _Dispatch, left: Collection[UUID]) -> Choice | None:
        """Return another choice; None if there is none, or too many engines have failed on the request."""
        if dispatch.context.timeline.failed_engines >= MAX_FAILED_ENGINES or not left:
            return None
        first = dispatch.turn.choice
        assert first is not None, "another one comes after a first one"
        return self._router.choose(dispatch.request, self._usable(left), policy=first.policy)

    def _usable(self, replicas: Collection[UUID]) -> Sequence[UUID]:
        """Return the replicas that did not just fail; all of them if there is no other."""
        now = time.monotonic()
        healthy = [replica for replica in replicas if self._avoid_until.get(replica, 0.0) <= now]
        return healthy or list(replicas)

    def _explained(self, choice: Choice, context: RequestContext) -> PrefixMatch | None:
        """Keep the decision for operators; return how much of the prompt was expected to be cached.

        None if its engine may not use what it has cached.
        """
        match = explanation.prefix_match(choice)
        self._decisions.add(
            explanation.decision(
                choice,
                match,
                request_id=context.timeline.request_id,
                tenant_id=context.caller.tenant_id,
                model=context.model.name,
                at=time.time(),
            )
        )
        return None if _computes_whole_prompt(context.call.body) else match

    async def _try(
        self, endpoint: Endpoint, choice: Choice, dispatch: _Dispatch, match: PrefixMatch | None
    ) -> EngineReply:
        """Return the reply with its first bytes. Raises UpstreamError, Unavailable or EngineRefused."""
        response: UpstreamResponse | None = None
        self._in_flight.start(endpoint.deployment, choice.tokens, dispatch.context.caller.allowed_regions)

        start: AnswerStart | None = None
        context, sent_at = dispatch.context, 0.0
        call: EngineCall | None = None

        def finish() -> None:
            if call is not None:
                call.end()
            self._router.finish(choice, answered=start is not None)
            self._in_flight.finish(endpoint.deployment, choice.tokens, context.caller.allowed_regions)
            dispatch.turn.wrote(dispatch.meter.streamed_tokens)
            self.turns.made_room()

        try:
            dispatch.meter.start(
                prompt_tokens_estimate=dispatch.request.prefix.tokens,
                cached_tokens_estimate=choice.warm_tokens,
                endpoint=endpoint,
                route_reason=choice.reason,
                match=match,
                split=dispatch.turn.split,
            )
            sent_at = time.perf_counter()
            call = _traced_call(context, endpoint, choice)
            try:
                response = await self._post(endpoint, dispatch, stream=context.call.stream, call=call)
            finally:  # also for a failed replica: that time was not the gateway's
                waited = time.perf_counter() - sent_at
                context.timeline.engine_seconds += waited
            first = await self._first_bytes(endpoint, dispatch, response)
            if call is not None:
                call.first_byte_seconds = waited
            start = self._router.answered(choice, streamed=dispatch.request.streamed)
            self.turns.made_room()
            self._outcomes.count(context, endpoint, waited)
            return EngineReply(
                choice=choice,
                revision_digest=endpoint.revision_digest,
                first=first,
                prompt_tokens=dispatch.request.prefix.tokens,
                response=response,
                finish=finish,
                learn=partial(self._learn, choice, start, dispatch),
                succeeded=partial(self._suspect_requests.completed, context),
                failed=partial(self._suspect_requests.engine_failed, context, endpoint),
                broke=partial(self._outcomes.broke, context, endpoint),
            )
        except BaseException as error:
            if call is not None:
                call.end(_error_type(error))
            if sent_at:
                self._outcomes.count(context, endpoint, time.perf_counter() - sent_at, error)
            if response is not None:
                response.close()
            finish()
            raise

    async def _first_bytes(self, endpoint: Endpoint, dispatch: _Dispatch, response: UpstreamResponse) -> bytes:
        """Return the first bytes of a successful response. Raises UpstreamError, EngineRefused or GatewayError."""
        first, call = response.take(), dispatch.context.call
        if response.status in errors.ABOUT_THE_REQUEST:
            raise await self._refusal(endpoint, dispatch, response.status, first)
        if response.status != 200:
            raise errors.not_served(response.status, first, call.model, call.path) or WrongStatus(response.status)
        if not first:
            raise ConnectionLost("the response ended before its first byte", after_first_byte=True)
        if call.stream and (refusal := self._refused_in_stream(dispatch, first)):
            raise refusal
        return first

    def _learn(self, choice: Choice, start: AnswerStart, dispatch: _Dispatch, usage: Usage) -> None:
        dispatch.turn.used(usage.prompt_tokens, usage.completion_tokens)
        body = dispatch.context.call.body
        self._router.learn(
            choice,
            start,
            computed_tokens=usage.prompt_tokens,
            cached_tokens=None if _computes_whole_prompt(body) else usage.cached_prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )

    async def _refusal(self, endpoint: Endpoint, dispatch: _Dispatch, status: int, payload: bytes) -> GatewayError:
        """Return the error for a request that the engine refused, or whose output it could not use."""
        call = dispatch.context.call
        refusal = errors.engine_refused(status, dispatch.without_salt(payload), call.endpoint.prompt_field)
        if not unusable_output.is_possible(call, refusal):
            return refusal
        named = dispatch.engine_name or call.body["model"]
        stream = msgspec.structs.replace(dispatch, payload=unusable_output.stream_body(call, dispatch.salt, named))
        try:
            response = await self._post(endpoint, stream, stream=True)
            try:
                written = await unusable_output.writes_a_token(response, call.endpoint.stream_parser(keep=False))
            finally:
                response.close()
        except UpstreamError:
            return refusal
        return errors.unusable_output() if written else refusal

    def _refused_in_stream(self, dispatch: _Dispatch, first: bytes) -> EngineRefused | None:
        return errors.refused_in_stream(dispatch.without_salt(first), dispatch.context.call.endpoint.prompt_field)

    def _post(
        self, endpoint: Endpoint, dispatch: _Dispatch, *, stream: bool, call: EngineCall | None = None
    ) -> Awaitable[UpstreamResponse]:
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {endpoint.api_key}",
            "x-request-id": dispatch.context.timeline.request_name,
        }
        if call is not None:
            headers["traceparent"] = call.traceparent
        return self._upstream.post(
            endpoint.base_url,
            dispatch.context.call.endpoint.engine_path,
            headers,
            dispatch.payload,
            stream=stream,
            tls_name=endpoint.tls_name,
        )


def _traced_call(context: RequestContext, endpoint: Endpoint, choice: Choice) -> EngineCall | None:
    """Begin the call of an engine in the request's trace; None if it has none."""
    trace = context.timeline.trace
    if trace is None:
        return None
    return trace.call_engine(
        base_url=endpoint.base_url,
        replica_id=endpoint.replica_id,
        deployment=endpoint.deployment,
        route_reason=choice.reason,
    )


def _error_type(error: BaseException) -> str:
    """Return what a trace calls the failure of an engine's call."""
    if isinstance(error, UpstreamError):
        return error.reason
    return error.code if isinstance(error, GatewayError) else "cancelled"


def _payload(context: RequestContext, salt: str, meter: Meter, engine_name: str) -> bytes:
    """Return the body for an engine, which knows an adapter by a name of its own."""
    call = context.call
    body = {**call.body, "model": engine_name} if engine_name else call.body
    return call.endpoint.engine_body(body, stream=call.stream, salt=salt, counted=meter.cost_reservation is not None)


def _computes_whole_prompt(body: Mapping[str, object]) -> bool:
    """Return whether vLLM computes all of a prompt, whatever it has cached."""
    return body.get("prompt_logprobs") is not None


def _overran(failure: ReadTimeout | ResponseTooLarge, dispatch: _Dispatch) -> EngineOverran:
    """Return the error for a response that took too long or is too large; the meter charges for it."""
    call, model = dispatch.context.call, dispatch.context.model
    log.warning("the response to request %s overran: %s", dispatch.context.timeline.request_id, failure)
    dispatch.meter.overran(overrun.completion_tokens(call, model, failure))
    if isinstance(failure, ReadTimeout):
        return errors.engine_timed_out(failure.seconds)
    return errors.response_too_large(connection.MAX_WHOLE_BYTES)


def _failed(failures: Sequence[UpstreamError], engines: int) -> EngineFailed:
    """Return the error for a request that failed on every replica."""
    message = f"Every replica that was tried failed ({_description(failures[-1])}). Nothing was charged. Retry."
    if all(_is_gone(failure) for failure in failures):
        return EngineGone(message, "engine_failed", engines=engines)
    return EngineFailed(message, "engine_failed")


def _is_gone(failure: UpstreamError) -> bool:
    """Return whether the engine may have ended: the connection failed, or the engine reported that it shuts down."""
    if isinstance(failure, WrongStatus):
        return failure.status == 503
    return True


def _may_be_its_fault(failure: UpstreamError) -> bool:
    """Return whether the request itself may have made the engine fail.

    vLLM returns 500 to all requests when its core has died, and 503 when it shuts down.
    """
    if isinstance(failure, WrongStatus):
        return failure.status >= 500 and failure.status != 503
    return not isinstance(failure, ConnectFailed)


def _description(failure: UpstreamError) -> str:
    return str(failure) if isinstance(failure, WrongStatus) else type(failure).__name__

"""Send a request to the chosen replica, and to another one if it fails before its first byte."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import msgspec

from gateway import errors, metrics
from gateway.control_plane.in_flight import InFlight
from gateway.errors import EngineFailed, EngineGone
from gateway.metering.meter import Meter
from gateway.request import RequestContext
from gateway.upstream.client import UpstreamClient
from gateway.upstream.connection import ConnectFailed, ConnectionLost, ReadTimeout, UpstreamError, UpstreamResponse
from routing.errors import NoReplica
from routing.router import Choice, Router, RoutingRequest
from workers.serving.endpoints import Endpoint

log = logging.getLogger(__name__)

#: A replica that just failed is passed over for this long, unless nothing else is left, seconds.
AVOID_SECONDS = 2.0
MAX_ATTEMPTS = 3
#: Refusals that are about what the tenant sent; any other (401, 404, 500) is between us and the engine.
ABOUT_THE_REQUEST = (400, 413, 422)


class WrongStatus(UpstreamError):
    """A replica is there, but its answer is neither a reply nor a refusal of the request."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class _Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One request on its way, to whichever replica."""

    context: RequestContext
    ask: RoutingRequest
    salt: str
    payload: bytes
    meter: Meter


class EngineReply(msgspec.Struct, kw_only=True, eq=False):
    """An engine that has begun to answer: its whole body, or the first piece and the rest of its stream.

    Whoever holds a reply must call :meth:`close`, which also stops the engine's work if it is not done.
    """

    choice: Choice
    first: bytes
    #: Estimate of the whole prompt.
    prompt_tokens: int
    response: UpstreamResponse
    #: Counts the request out.
    finish: Callable[[], None]
    closed: bool = False

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield what follows the first piece, as it comes."""
        while piece := await self.response.read():
            yield piece

    def close(self, *, answered: bool = False) -> None:
        """Let go of the connection and count the request out; the second call does nothing.

        ``answered``: the engine has said its last word, so that its connection may be used again.
        """
        if not self.closed:
            self.closed = True
            self.response.close(answered=answered)
            self.finish()


class Dispatcher:
    """Owns the router's use and the connections to the engines."""

    def __init__(self, upstream: UpstreamClient, router: Router, in_flight: InFlight) -> None:
        self._upstream = upstream
        self._router = router
        self._in_flight = in_flight
        self._avoid: dict[UUID, float] = {}

    async def send(
        self, context: RequestContext, ask: RoutingRequest, salt: str, endpoints: Sequence[Endpoint], meter: Meter
    ) -> EngineReply:
        """Return the first reply that began. Raises EngineRefused, EngineFailed, EngineGone, NotReady, Unavailable."""
        left: dict[UUID, Endpoint] = {endpoint.replica_id: endpoint for endpoint in endpoints}
        call, timeline = context.call, context.timeline
        errand = _Dispatch(
            context=context,
            ask=ask,
            salt=salt,
            payload=call.endpoint.engine_body(
                call.body, stream=call.stream, salt=salt, counted=meter.cost_reservation is not None
            ),
            meter=meter,
        )
        failures: list[UpstreamError] = []
        doubted: list[UUID] = []
        for attempt in range(MAX_ATTEMPTS):
            try:
                choice = self._router.choose(ask, self._candidates(left))
            except NoReplica:
                break
            endpoint = left.pop(choice.replica_id)
            if attempt:
                metrics.retried(timeline.model)
            try:
                reply = await self._try(endpoint, choice, errand)
            except UpstreamError as error:
                failures.append(error)
                metrics.engine_failed(timeline.model, error)
                if isinstance(error, WrongStatus):
                    doubted.append(choice.replica_id)
                else:
                    self._pass_over(choice.replica_id)
                log.warning("replica %s failed before its first byte: %s", choice.replica_id, _told(error))
            else:
                # Another replica could answer: so it was not the request, which may not shut anybody else out.
                self._pass_over(*doubted)
                return reply
        raise _failed(failures) if failures else errors.no_replica_ready(str(call.body["model"]))

    def _pass_over(self, *replicas: UUID) -> None:
        until = time.monotonic() + AVOID_SECONDS
        self._avoid.update(dict.fromkeys(replicas, until))

    def _candidates(self, left: Mapping[UUID, Endpoint]) -> list[UUID]:
        now = time.monotonic()
        healthy = [replica for replica in left if self._avoid.get(replica, 0.0) <= now]
        return healthy or list(left)

    async def _try(self, endpoint: Endpoint, choice: Choice, errand: _Dispatch) -> EngineReply:
        """Return the reply once its first byte is here.

        Raises UpstreamError, Unavailable or EngineRefused, with the request counted out.
        """
        response: UpstreamResponse | None = None
        self._in_flight.start(endpoint.deployment, choice.tokens)

        def finish() -> None:
            self._router.finish(choice)
            self._in_flight.finish(endpoint.deployment, choice.tokens)

        try:
            errand.meter.start(
                prompt_tokens_estimate=errand.ask.prefix.tokens,
                cached_tokens_estimate=choice.warm_tokens,
                replica_id=choice.replica_id,
                route_reason=choice.reason,
            )
            asked = time.perf_counter()
            try:
                response = await self._post(endpoint, errand)
            finally:  # the time that a replica took which failed was not the gateway's either
                errand.context.timeline.engine_seconds += time.perf_counter() - asked
            first = response.take()
            if response.status in ABOUT_THE_REQUEST:
                raise errors.engine_refused(response.status, first.replace(errand.salt.encode(), b"..."))
            if response.status != 200:
                unserved = errors.not_served(
                    response.status, first, errand.context.call.model, errand.context.call.path
                )
                raise unserved or WrongStatus(response.status)
            if not first:
                raise ConnectionLost("the answer ended before its first byte", after_first_byte=True)
            return EngineReply(
                choice=choice,
                first=first,
                prompt_tokens=errand.ask.prefix.tokens,
                response=response,
                finish=finish,
            )
        except BaseException:
            if response is not None:
                response.close()
            finish()
            raise

    def _post(self, endpoint: Endpoint, errand: _Dispatch) -> Awaitable[UpstreamResponse]:
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {endpoint.api_key}",
            "x-request-id": errand.context.timeline.request_name,
        }
        return self._upstream.post(
            endpoint.base_url,
            errand.context.call.endpoint.engine_path,
            headers,
            errand.payload,
            stream=errand.context.call.stream,
        )


def _failed(failures: Sequence[UpstreamError]) -> EngineFailed:
    """Return the answer to a request on which every replica failed."""
    message = f"No replica answered ({_told(failures[-1])}). Nothing was charged; try again."
    if all(_is_gone(failure) for failure in failures):
        reached = sum(not isinstance(failure, ConnectFailed) for failure in failures)
        return EngineGone(message, "engine_failed", reached=reached)
    return EngineFailed(message, "engine_failed")


def _is_gone(failure: UpstreamError) -> bool:
    """Say whether an engine that failed so may have ended or be about to: it broke off, or said that it is closing."""
    if isinstance(failure, WrongStatus):
        return failure.status == 503
    return not isinstance(failure, ReadTimeout)


def _told(failure: UpstreamError) -> str:
    return str(failure) if isinstance(failure, WrongStatus) else type(failure).__name__

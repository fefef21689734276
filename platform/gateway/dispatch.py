"""Send a request to the chosen replica, and to another one if it fails before its first byte."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import aiohttp
import orjson

from gateway import errors
from gateway.errors import EngineFailed
from gateway.messages import Trace
from gateway.metering import Meter
from gateway.schemas import Call
from routing.errors import NoReplica
from routing.router import Ask, Choice, Router
from workers.endpoints import Endpoint

#: A replica that just failed is passed over for this long, unless nothing else is left, seconds.
AVOID_SECONDS = 2.0
MAX_ATTEMPTS = 3
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(slots=True, kw_only=True)
class Reply:
    """An engine that has begun to answer: its whole body, or the first piece and the rest of its stream.

    Whoever holds a reply must call :meth:`close`, which also stops the engine's work if it is not done.
    """

    choice: Choice
    status: int
    first: bytes
    #: Estimate of the whole prompt.
    prompt_tokens: int
    response: aiohttp.ClientResponse
    router: Router
    closed: bool = False

    async def rest(self) -> AsyncIterator[bytes]:
        """Yield what follows the first piece, as it comes."""
        async for piece in self.response.content.iter_any():
            yield piece

    def close(self) -> None:
        """Let go of the connection and count the request out; the second call does nothing."""
        if not self.closed:
            self.closed = True
            self.response.close()
            self.router.finish(self.choice)


class Dispatcher:
    """Owns the router's use and the HTTP session to the engines."""

    def __init__(self, session: aiohttp.ClientSession, router: Router, timeout: aiohttp.ClientTimeout) -> None:
        self._session = session
        self._router = router
        self._timeout = timeout
        self._avoid: dict[UUID, float] = {}

    async def send(
        self, call: Call, ask: Ask, salt: str, endpoints: Sequence[Endpoint], meter: Meter, trace: Trace
    ) -> Reply:
        """Return the first reply that began. Raises EngineRefused, EngineFailed or Unavailable."""
        left: dict[UUID, Endpoint] = {endpoint.replica_id: endpoint for endpoint in endpoints}
        payload = engine_body(call, salt)
        failure = "nothing was tried"
        for _ in range(MAX_ATTEMPTS):
            try:
                choice = self._router.choose(ask, self._candidates(left))
            except NoReplica:
                break
            meter.start(
                prompt_tokens_estimate=ask.chain.tokens, replica_id=choice.replica_id, route_reason=choice.reason
            )
            endpoint = left.pop(choice.replica_id)
            try:
                return await self._try(endpoint, choice, ask, call, payload, trace)
            except FAILURES as error:
                failure = type(error).__name__
                self._avoid[endpoint.replica_id] = time.monotonic() + AVOID_SECONDS
        if not endpoints:
            raise errors.no_replica_ready(str(call.body["model"]))
        raise EngineFailed(f"No replica answered ({failure}). Nothing was charged; try again.", "engine_failed")

    def _candidates(self, left: Mapping[UUID, Endpoint]) -> list[UUID]:
        now = time.monotonic()
        healthy = [replica for replica in left if self._avoid.get(replica, 0.0) <= now]
        return healthy or list(left)

    async def _try(
        self, endpoint: Endpoint, choice: Choice, ask: Ask, call: Call, payload: bytes, trace: Trace
    ) -> Reply:
        """Return the reply once its first byte is here. Raises one of FAILURES, with the request counted out."""
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(
                endpoint.base_url + call.endpoint,
                data=payload,
                headers={
                    "content-type": "application/json",
                    "authorization": f"Bearer {endpoint.api_key}",
                    "x-request-id": str(trace.request_id),
                },
                timeout=self._timeout,
            )
            if response.status >= 500:
                raise aiohttp.ServerDisconnectedError(f"status {response.status}")
            streamed = call.stream and response.status == 200
            first = await (response.content.readany() if streamed else response.read())
            if streamed and not first:
                raise aiohttp.ServerDisconnectedError("the stream ended before its first byte")
            reply = Reply(
                choice=choice,
                status=response.status,
                first=first,
                prompt_tokens=ask.chain.tokens,
                response=response,
                router=self._router,
            )
        except BaseException:
            if response is not None:
                response.close()
            self._router.finish(choice)
            raise
        if reply.status != 200:
            reply.close()
            raise errors.engine_refused(reply.status, reply.first)
        return reply


def engine_body(call: Call, salt: str) -> bytes:
    """Return the body for the engine: the tenant's salt, and usage always asked for."""
    body: dict[str, Any] = {**call.body, "cache_salt": salt}
    if call.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    return orjson.dumps(body)

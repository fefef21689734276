"""A follower's retry is closed or ended, even if its reply arrives at the same moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson

from caching.single_flight import Flight
from gateway import errors
from gateway.coalescing.coalescer import Coalescer, Followed
from gateway.metering.meter import Meter
from gateway.protocols import request_body
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.request import RequestContext, RequestTimeline, Response
from gateway.streaming.follower_stream import FollowerStream
from tenants.ids import new_id
from tests.gateway.fixtures.tenants import MODEL, STREAMED, Gateway

WIRE = ENDPOINTS["/v1/chat/completions"]


class Reply:
    """What a follower comes to lead: a stream of one event."""

    def __init__(self) -> None:
        self.ended: list[errors.GatewayError] = []
        self.closed = 0

    def begun(self, _: str) -> Response:
        """Return its stream."""
        return Response(status=200, headers=[], stream=self._pieces(), on_close=self._close, end_with=self.ended.append)

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield b"data: one\n\n"

    def _close(self) -> None:
        self.closed += 1


def failed() -> Flight:
    """Return a flight that has failed, with one follower."""
    flight = Flight(b"name", new_id(), new_id(), streamed=True)
    flight.join()
    flight.fail()
    return flight


def stream_of(gateway: Gateway, again: Callable[[], Awaitable[str | Followed]], reply: Reply) -> FollowerStream[str]:
    """Return the stream of a follower whose flight has failed."""
    components = gateway.runtime.components
    who = components.feed.snapshot.callers.caller(gateway.world.acme.key.public_id)
    call = request_body.parse(WIRE, orjson.dumps(STREAMED))
    model = components.feed.snapshot.catalogue.models[MODEL]
    timeline = RequestTimeline(
        request_id=new_id(),
        request_name="r",
        client_request_id="",
        started_at_ns=time.time_ns(),
        started=time.perf_counter(),
        endpoint=WIRE,
    )
    context = RequestContext(caller=who, call=call, model=model, timeline=timeline)
    meter = Meter(components.wal, context)
    coalescer: Coalescer[str] = Coalescer(components.single_flight, context, meter)
    followed = Followed(flight=failed(), entry=None)
    return FollowerStream(followed, coalescer, call, meter, again=again, begin=reply.begun)


async def test_a_reply_that_begins_as_its_client_leaves_is_closed(gateway: Gateway) -> None:
    reply = Reply()

    async def again() -> str:
        sending.cancel()
        return "begun"

    stream = stream_of(gateway, again, reply)
    sending = asyncio.ensure_future(_all(stream))
    await asyncio.wait({sending})
    assert sending.cancelled()
    stream.close()
    assert reply.closed == 1


async def test_a_flight_that_is_found_as_its_client_leaves_has_no_follower_left(gateway: Gateway) -> None:
    other = Flight(b"name", new_id(), new_id(), streamed=True)

    async def again() -> Followed:
        other.join()
        sending.cancel()
        return Followed(flight=other, entry=None)

    stream = stream_of(gateway, again, Reply())
    sending = asyncio.ensure_future(_all(stream))
    await asyncio.wait({sending})
    stream.close()
    assert other.followers == 0


async def test_a_reply_that_begins_as_its_key_is_revoked_is_ended(gateway: Gateway) -> None:
    reply, refusal = Reply(), errors.Unauthorized("Revoked.", "key_revoked")

    async def again() -> str:
        asyncio.get_running_loop().call_soon(stream.end_with, refusal)
        return "begun"

    stream = stream_of(gateway, again, reply)
    await _all(stream)
    assert reply.ended == [refusal]


async def _all(stream: FollowerStream[str]) -> list[bytes]:
    return [piece async for piece in stream.pieces()]

"""Behind Django's handler and middleware no request runs on after its client disconnects, at any stage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from django.conf import LazySettings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import async_only_middleware

from tests.gateway.fixtures.scripted_app import CHUNKS, events, streaming
from tests.gateway.fixtures.tenants import STREAMED, Gateway, until, view_door

Get = Callable[[HttpRequest], Awaitable[HttpResponseBase]]
behind_django = pytest.mark.parametrize("gateway", [pytest.param(view_door, id="view")], indirect=True)

#: Responses that middleware has in hand, and does not give on.
kept: list[int] = []


@async_only_middleware
def dawdling(get_response: Get) -> Get:
    """Look at each response for as long as the client stays."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        kept.append(response.status_code)
        await asyncio.Event().wait()
        return response

    return middleware


@behind_django
async def test_a_stream_that_django_drops_is_ended(gateway: Gateway, settings: LazySettings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.gateway.test_views.dawdling"]
    gateway.let_all_say(streaming(events(CHUNKS[:2], done=False), then_wait=True))
    exchange = gateway.exchange(STREAMED)
    exchange.app = ASGIHandler()
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: kept)
    exchange.disconnect.set()
    await work
    assert exchange.sent == []
    await until(gateway.ends)
    assert [end.state for end in gateway.ends()] == ["client_gone"]
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)
    await gateway.idle()

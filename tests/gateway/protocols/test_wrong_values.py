"""No field of any endpoint makes the gateway fail, whatever JSON value it has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.protocols.endpoint_table import ENDPOINTS
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.budget import budgeted
from tests.gateway.fixtures.protocol_replies import ANSWERS, every_protocol
from tests.gateway.fixtures.scripted_app import hello
from tests.gateway.fixtures.tenants import Gateway
from tests.wrong_values import ANY_JSON, BODIES, VALUES, places, replaced


async def answering(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Respond with "Hello" in the protocol of the path, of which chat and completions have their own."""
    return await (every_protocol if request.path in ANSWERS else hello)(request, body)


def assert_not_failed(path: str, sent: Any, answer: Exchange) -> None:
    """Fail if the gateway failed, before its response or within its stream."""
    assert answer.status in {200, 400, 404, 413, 429}, (path, sent, answer.status, answer.body[:300])
    assert b"internal_error" not in answer.body, (path, sent, answer.body[:300])


def test_every_endpoint_and_every_field_that_it_checks_is_tried() -> None:
    assert BODIES.keys() == ENDPOINTS.keys()
    for path, endpoint in ENDPOINTS.items():
        assert BODIES[path].keys() >= {*endpoint.checks, *endpoint.required, *endpoint.limits}, path


@pytest.mark.usefixtures("emptied")
async def test_no_field_of_a_wrong_type_makes_the_gateway_fail(gateway: Gateway) -> None:
    gateway.let_all_say(answering)
    await gateway.set_policy(cache_mode="all")
    await (await budgeted(gateway, 10**15)).keep()
    for path, body in BODIES.items():
        assert (await gateway.ask(body, path=path)).status == 200, path
        whole = itertools.product([False], places(body))
        streamed = itertools.product([True], places(body, depth=1) if ENDPOINTS[path].streams else ())
        tried = itertools.product(itertools.chain(whole, streamed), VALUES)
        for number, ((stream, place), value) in enumerate(tried):  # no two are alike, so each reaches every stage
            sent = replaced({**body, "stream": stream, "new": number}, {place: value})
            assert_not_failed(path, sent, await gateway.ask(sent, path=path))


@pytest.mark.usefixtures("emptied")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
async def test_no_json_in_any_fields_makes_the_gateway_fail(gateway: Gateway, data: st.DataObject) -> None:
    gateway.let_all_say(answering)
    path = data.draw(st.sampled_from(sorted(BODIES)))
    changes = data.draw(st.dictionaries(st.sampled_from(list(places(BODIES[path]))), ANY_JSON, min_size=1, max_size=4))
    sent = replaced({**BODIES[path], "new": data.draw(st.integers(0, 2**40))}, changes)
    assert_not_failed(path, sent, await gateway.ask(sent, path=path))

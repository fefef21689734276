"""The raw ASGI application: how much it reads, how long it waits, and what happens when the client disconnects."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from django.conf import settings

from billing.errors import WalFull
from gateway.asgi import UNCHECKED_BYTES, GatewayApp
from gateway.pipeline.handler import Pipeline
from tenants.keys import key_format
from tests.gateway.fixtures.scripted_app import CHUNKS, answer, events, silence, streaming
from tests.gateway.fixtures.tenants import MAX_BODY_BYTES, Gateway, until


async def test_a_request_is_answered_whole(gateway: Gateway) -> None:
    asked = await gateway.ask()
    assert (asked.status, asked.json) == (200, answer())
    assert asked.answer_headers["content-length"] == str(len(asked.body))
    assert asked.answer_headers["content-type"] == "application/json"


async def test_a_body_in_any_number_of_pieces_is_one_body(gateway: Gateway) -> None:
    whole = gateway.exchange().pieces[0]
    asked = await gateway.ask(pieces=[whole[i : i + 1] for i in range(len(whole))])
    assert (asked.status, gateway.engines[0].bodies[0]["messages"]) == (200, [{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_refused_with_413(gateway: Gateway, announced: bool) -> None:
    headers = {"content-length": str(MAX_BODY_BYTES + 1)} if announced else {}
    pieces = [b"x" * 65536] * (MAX_BODY_BYTES // 65536 + 3)
    asked = await gateway.ask(headers=headers, pieces=pieces)
    assert asked.read == len(pieces)  # to its end: many clients look for the answer only after sending
    assert (asked.status, asked.error["code"]) == (413, "body_too_large")
    assert asked.answer_headers["connection"] == "close"
    assert asked.answer_headers["x-request-id"]
    assert gateway.records() == []


@pytest.mark.parametrize("announced", [True, False])
async def test_of_a_body_far_too_large_no_more_is_read_than_two_bodies_beyond_the_first(
    gateway: Gateway, announced: bool
) -> None:
    pieces = [b"x" * 65536] * (6 * MAX_BODY_BYTES // 65536)
    headers = {"content-length": str(len(pieces) * 65536)} if announced else {}
    asked = await gateway.ask(headers=headers, pieces=pieces)
    assert asked.read == (0 if announced else 3 * MAX_BODY_BYTES // 65536 + 1)
    assert (asked.status, asked.error["code"]) == (413, "body_too_large")


async def test_a_client_that_asks_before_it_sends_a_body_that_is_too_large_need_not_send_it(gateway: Gateway) -> None:
    headers = {"content-length": str(MAX_BODY_BYTES + 1), "expect": "100-continue"}
    asked = await gateway.ask(headers=headers)
    assert (asked.read, asked.status, asked.error["code"]) == (0, 413, "body_too_large")


async def test_a_body_of_exactly_the_limit_is_read(gateway: Gateway) -> None:
    asked = await gateway.ask(b"x" * MAX_BODY_BYTES)
    assert (asked.status, asked.error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("length", ["-1", "x", "", "1e9", "²"])
async def test_a_nonsensical_content_length_does_no_harm(gateway: Gateway, length: str) -> None:
    assert (await gateway.ask(headers={"content-length": length})).status == 200


async def test_a_body_that_does_not_come_is_given_up_with_408(gateway: Gateway) -> None:
    asked = await gateway.ask(pieces=())
    assert (asked.status, asked.error["code"]) == (408, "body_too_slow")
    assert gateway.records() == []


async def test_a_body_that_breaks_off_is_a_bad_request_that_nothing_comes_of(gateway: Gateway) -> None:
    exchange = gateway.exchange(pieces=())
    exchange.disconnect.set()
    asked = await exchange.run()
    assert (asked.status, asked.error["code"]) == (400, "body_broken")
    assert gateway.records() == []


@pytest.mark.parametrize("key", ["", "nonsense", key_format.generate("hk").text()], ids=["none", "nonsense", "unknown"])
async def test_a_strangers_large_body_is_not_read(gateway: Gateway, key: str) -> None:
    asked = await gateway.ask(key=key, pieces=[b"x" * (UNCHECKED_BYTES // 2)] * 8)
    assert (asked.status, asked.error["code"]) == (401, "missing_api_key" if not key else "invalid_api_key")
    assert asked.answer_headers["www-authenticate"] == "Bearer"
    assert asked.read == 0


@pytest.mark.parametrize("key", ["", "nonsense", key_format.generate("hk").text()], ids=["none", "nonsense", "unknown"])
async def test_a_client_without_a_valid_key_keeps_no_connection(gateway: Gateway, key: str) -> None:
    asked = await gateway.ask(key=key)
    assert (asked.status, asked.answer_headers["connection"]) == (401, "close")
    assert "connection" not in (await gateway.ask()).answer_headers


async def test_a_client_that_leaves_stops_the_engine_and_is_metered(gateway: Gateway) -> None:
    for engine in gateway.engines:
        engine.say = silence
    exchange = gateway.exchange()
    work = asyncio.create_task(exchange.run())
    await until(gateway.bodies)
    exchange.disconnect.set()
    await work
    assert exchange.sent == []
    assert [(end.state, end.http_status) for end in gateway.ends()] == [("client_gone", 499)]
    assert gateway.loads() == [0, 0]
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)


async def test_a_client_that_leaves_mid_stream_pays_for_what_was_streamed(gateway: Gateway) -> None:
    for engine in gateway.engines:
        engine.say = streaming(events(CHUNKS[:3], done=False), then_wait=True)
    exchange = gateway.exchange({"model": "demo", "messages": [{"role": "user", "content": "x" * 400}], "stream": True})
    work = asyncio.create_task(exchange.run())
    await until(lambda: exchange.body.count(b"data:") == 3)
    exchange.disconnect.set()
    await work
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("client_gone", "streamed", 2)
    assert end.prompt_tokens == 101  # (400 bytes and the role) / 4
    assert gateway.loads() == [0, 0]
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)


async def test_a_server_that_stops_ends_what_runs(gateway: Gateway) -> None:
    for engine in gateway.engines:
        engine.say = silence
    work = asyncio.create_task(gateway.exchange().run())
    await until(gateway.starts)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [end.state for end in gateway.ends()] == ["client_gone"]
    assert gateway.loads() == [0, 0]


async def test_a_gateway_that_cannot_open_its_log_says_so_until_it_can(gateway: Gateway) -> None:
    failures = [WalFull(gateway.wal, "no space left")]

    def pipeline() -> Pipeline:
        if failures:
            raise failures.pop()
        return gateway.runtime.pipeline

    app = GatewayApp(pipeline, max_body_bytes=MAX_BODY_BYTES, body_timeout_seconds=1.0, send_timeout_seconds=60.0)
    refused = await dataclasses.replace(gateway, app=app).ask()
    served = await dataclasses.replace(gateway, app=app).ask()
    assert (refused.status, refused.error["code"], served.status) == (503, "usage_log_unavailable", 200)
    assert str(gateway.wal) not in refused.body.decode()


async def test_head_works_where_get_does(gateway: Gateway) -> None:
    assert (await gateway.ask(method="HEAD", path="/v1/models")).status == 200
    refused = await gateway.ask(method="HEAD", path="/v1/chat/completions")
    assert (refused.status, refused.answer_headers["allow"]) == (405, "POST")
    unknown = await gateway.ask(method="DELETE", path="/v1/models")
    assert unknown.answer_headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_path"),
        ("GET", "/v1/organization/costs", 404, "served_by_portal"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/requests/x", 405, "method_not_allowed"),
        ("GET", "/v1/requests/x", 404, "request_not_found"),
        ("GET", "/v1/models/nothing", 404, "model_not_found"),
    ],
)
async def test_a_path_or_method_that_is_not_served_is_said_so(
    gateway: Gateway, method: str, path: str, status: int, code: str
) -> None:
    asked = await gateway.ask(method=method, path=path)
    assert (asked.status, asked.error["code"]) == (status, code)
    assert (status == 405) == ("allow" in asked.answer_headers)
    before_the_key_is_checked = code in ("unknown_path", "method_not_allowed", "served_by_portal")
    assert before_the_key_is_checked == (asked.answer_headers.get("connection") == "close")


@pytest.mark.parametrize(
    ("host", "where"),
    [
        (f"llm.example:{settings.GATEWAY_PORT}", f"http://llm.example:{settings.GATEWAY_PORT + 1}/v1."),
        (f"[::1]:{settings.GATEWAY_PORT}", f"http://[::1]:{settings.GATEWAY_PORT + 1}/v1."),
        ("llm.example", f"port is {settings.GATEWAY_PORT + 1}"),
        (f"<b>:{settings.GATEWAY_PORT}", f"port is {settings.GATEWAY_PORT + 1}"),
    ],
)
async def test_usage_and_costs_are_said_to_be_at_the_portal(gateway: Gateway, host: str, where: str) -> None:
    asked = await gateway.ask(method="GET", path="/v1/organization/usage/completions", headers={"host": host})
    assert asked.status == 404
    assert where in asked.error["message"]

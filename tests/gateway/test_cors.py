"""Which origins' pages may call the gateway from a browser, and what others learn: nothing."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.asgi import GatewayApp
from gateway.cors import LONGEST_ASKED, CrossOrigin
from tests.gateway.fixtures.tenants import MAX_BODY_BYTES, Gateway

PAGE = "https://chat.example"
EVIL = "https://evil.example"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-session-id"}


def allowing(gateway: Gateway, *origins: str) -> Gateway:
    """Return the gateway with an application that these origins' pages may call."""
    app = GatewayApp(
        lambda: gateway.runtime.pipeline,
        max_body_bytes=MAX_BODY_BYTES,
        body_timeout_seconds=1.0,
        send_timeout_seconds=60.0,
        cross_origin=CrossOrigin(origins),
    )
    return dataclasses.replace(gateway, app=app)


def marks(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that browsers read."""
    return {name: value for name, value in headers.items() if name.startswith("access-control-") or name == "vary"}


async def test_an_allowed_page_may_ask_first_without_a_key_and_then_read_the_response(gateway: Gateway) -> None:
    door = allowing(gateway, PAGE)
    asked = await door.ask(key="", method="OPTIONS", headers={"origin": PAGE, **ASKS}, pieces=[b""])
    assert (asked.status, asked.body) == (204, b"")
    assert marks(asked.answer_headers) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization, x-session-id",
        "access-control-max-age": "600",
        "vary": "Origin",
    }
    asked = await door.ask(headers={"origin": PAGE})
    expected = {"access-control-allow-origin": PAGE, "access-control-expose-headers": "*", "vary": "Origin"}
    assert (asked.status, marks(asked.answer_headers)) == (200, expected)
    assert "access-control-allow-credentials" not in asked.answer_headers


async def test_an_allowed_page_can_read_why_it_is_refused(gateway: Gateway) -> None:
    asked = await allowing(gateway, PAGE).ask(key="hk_unknown", headers={"origin": PAGE})
    assert (asked.status, asked.error["code"]) == (401, "invalid_api_key")
    assert asked.answer_headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origin", [EVIL, "null", f"{PAGE}.evil.example", f"{PAGE}, {EVIL}", PAGE.upper(), ""])
async def test_another_page_gets_no_permission(gateway: Gateway, origin: str) -> None:
    door = allowing(gateway, PAGE)
    asked = await door.ask(key="", method="OPTIONS", headers={"origin": origin, **ASKS}, pieces=[b""])
    assert (asked.status, marks(asked.answer_headers)) == (405, {})
    assert marks((await door.ask(headers={"origin": origin})).answer_headers) == {}


async def test_a_star_allows_every_page_and_a_request_without_an_origin_is_left_alone(gateway: Gateway) -> None:
    door = allowing(gateway, "*")
    assert (await door.ask(headers={"origin": EVIL})).answer_headers["access-control-allow-origin"] == EVIL
    assert marks((await door.ask()).answer_headers) == {}


async def test_a_preflight_repeats_no_long_list_and_reads_no_body(gateway: Gateway) -> None:
    long = {**ASKS, "access-control-request-headers": "x" * (LONGEST_ASKED + 1)}
    asked = await allowing(gateway, PAGE).ask(
        key="", method="OPTIONS", headers={"origin": PAGE, **long}, pieces=[b"x" * 65536] * 8
    )
    assert (asked.status, asked.read) == (204, 0)
    assert asked.answer_headers["access-control-allow-headers"] == "authorization, content-type"

"""Which origins' pages may call the gateway from a browser."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from gateway.cors import CrossOrigin

PAGE = "https://chat.example"


async def _application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"answer"})


async def ask(origins: tuple[str, ...], method: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a response."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await CrossOrigin(_application, origins)({"type": "http", "method": method, "headers": lines}, None, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, sent[1]["body"]


async def test_an_allowed_page_may_ask_first_and_then_read_the_response() -> None:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization, x-session-id"}
    status, headers, body = await ask((PAGE,), "OPTIONS", origin=PAGE, **asked)
    assert (status, body, headers["access-control-allow-origin"]) == (204, b"", PAGE)
    assert headers["access-control-allow-headers"] == "authorization, x-session-id"
    status, headers, body = await ask((PAGE,), "POST", origin=PAGE)
    assert (status, body, headers["access-control-allow-origin"], headers["vary"]) == (200, b"answer", PAGE, "Origin")


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_another_page_gets_no_permission(method: str) -> None:
    _, headers, body = await ask((PAGE,), method, origin="https://evil.example", access_control_request_method="POST")
    assert body == b"answer"
    assert not [name for name in headers if name.startswith("access-control")]


async def test_a_star_allows_every_page_and_a_request_without_an_origin_is_left_alone() -> None:
    assert (await ask(("*",), "GET", origin=PAGE))[1]["access-control-allow-origin"] == PAGE
    assert (await ask(("*",), "GET"))[1] == {"content-type": "text/plain"}

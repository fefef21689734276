"""Clients without a session cannot take the portal's threads, database connections or memory from others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from portal.access.requests import load_limits
from portal.access.requests.load_limits import LoadLimits
from tests.gateway.fixtures.http_server import until

STRANGER, OPERATOR = "127.0.0.2", "127.0.0.3"
PATIENCE_SECONDS = 60


class Page:
    """Responds once it is released."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.bodies: list[bytes] = []
        self.running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        self.running += 1
        await self.go_on.wait()
        self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def ask(
    limits: LoadLimits,
    pieces: list[bytes] | None = None,
    *,
    client: str = STRANGER,
    reads: asyncio.Event | None = None,
) -> tuple[int, bytes]:
    """Send one request and return the status and the first piece of its response.

    Without ``pieces`` its body never arrives. The client accepts what follows the first piece once it ``reads``.
    """
    sent: list[Any] = []
    unread = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces or []]
    if unread:
        unread[-1]["more_body"] = False
    scope = {"type": "http", "path": "/api/v1/x", "client": (client, 1), "headers": []}

    async def receive() -> Any:
        return unread.pop(0) if unread else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if len(sent) == 2 and reads is not None:
            await reads.wait()
        sent.append(message)

    await limits(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def test_one_client_runs_a_share_and_its_others_wait_while_another_client_is_served() -> None:
    page = Page()
    limits = LoadLimits(page)
    flood = [asyncio.ensure_future(ask(limits, [b""])) for _ in range(200)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until(lambda: page.running == load_limits.RUNNING_OF_CLIENT and any(each.done() for each in flood))
        refused = [each.result() for each in flood if each.done()]
        assert {status for status, _ in refused} == {503}
        assert len(refused) == 200 - load_limits.RUNNING_OF_CLIENT - load_limits.WAITING_OF_CLIENT
        others = asyncio.ensure_future(ask(limits, [b"other"], client=OPERATOR))
        await until(lambda: b"other" in page.bodies)
        assert page.running == load_limits.RUNNING_OF_CLIENT + 1
        page.go_on.set()
        assert (await others)[0] == 200
        assert sorted(status for status, _ in await asyncio.gather(*flood)) == [200] * 72 + [503] * 128
    assert not limits._clients
    assert not limits._bytes


async def test_a_request_that_waits_too_long_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limits, "WAIT_SECONDS", 0.05)
    page = Page()
    limits = LoadLimits(page)
    running = [asyncio.ensure_future(ask(limits, [b""])) for _ in range(load_limits.RUNNING_OF_CLIENT)]
    await until(lambda: page.running == load_limits.RUNNING_OF_CLIENT)
    status, body = await ask(limits, [b""])
    assert (status, b'"too_busy"' in body) == (503, True)
    page.go_on.set()
    await asyncio.gather(*running)
    assert (limits._waiting, limits._clients) == (0, {})


@pytest.mark.parametrize(
    ("pieces", "status", "code"),
    [([b"x" * 2**18] * 5, 413, b"body_too_large"), (None, 408, b"body_too_slow"), ([b"x"] * 3, 200, b"")],
)
async def test_a_body_is_bounded_in_bytes_and_time(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes] | None, status: int, code: bytes
) -> None:
    monkeypatch.setattr(load_limits, "BODY_SECONDS", 30.0 if pieces else 0.05)
    page = Page()
    page.go_on.set()
    limits = LoadLimits(page)
    answered = await ask(limits, pieces)
    assert (answered[0], code in answered[1]) == (status, True)
    assert page.bodies == ([b"xxx"] if status == 200 else [])
    assert (limits._all_bytes, limits._bytes) == (0, {})


async def test_the_bodies_of_one_client_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_limits, "BODIES_BYTES_OF_CLIENT", 10)
    page = Page()
    limits = LoadLimits(page)
    running = asyncio.ensure_future(ask(limits, [b"12345678"]))
    await until(lambda: page.running == 1)
    assert (await ask(limits, [b"123"]))[0] == 503
    others = asyncio.ensure_future(ask(limits, [b"123"], client=OPERATOR))
    page.go_on.set()
    assert {status for status, _ in await asyncio.gather(running, others)} == {200}


async def test_clients_that_do_not_read_hold_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = asyncio.Event()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await send({"type": "http.response.body", "body": b"last"})

    limits = LoadLimits(page)
    slow = [asyncio.ensure_future(ask(limits, [b""], reads=reads)) for _ in range(load_limits.SENDING_OF_CLIENT)]
    await until(lambda: limits._sending[STRANGER] == load_limits.SENDING_OF_CLIENT)
    assert limits._running._value == load_limits.RUNNING, "who reads slowly keeps nobody from running"
    status, body = await ask(limits, [b""])
    assert (status, b'"too_busy"' in body) == (503, True)
    assert (await ask(limits, [b""], client=OPERATOR)) == (200, b"first")
    reads.set()
    assert {status for status, _ in await asyncio.gather(*slow)} == {200}
    assert not limits._sending
    monkeypatch.setattr(load_limits, "SEND_SECONDS", 0.05)
    await ask(limits, [b""], reads=asyncio.Event())
    assert (limits._sending, limits._clients) == ({}, {})

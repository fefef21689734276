"""Nothing is served that cannot be metered, and a long stream writes down how far it is."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from billing.wal.records import encode
from billing.wal.segments import FRAME
from gateway.metering import meter
from tests.gateway.fixtures.scripted_app import CHUNKS, delta, events, streaming
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, Gateway, until

pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True)


@contextmanager
def full_disk(gateway: Gateway, *, room_bytes: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond what the usage log has now, and some room."""
    (segment,) = gateway.wal.glob("*.wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segment.stat().st_size + room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_what_cannot_be_metered_is_not_served(gateway: Gateway, body: dict[str, Any]) -> None:
    with full_disk(gateway):
        got = await gateway.ask(body)
    assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
    assert str(gateway.wal) not in got.body.decode()
    assert (len(gateway.bodies()), gateway.records()) == (0, [])
    await gateway.idle()
    assert (await gateway.ask(body)).status == 200


@pytest.mark.parametrize(
    ("body", "pieces"),
    [(HELLO, []), (STREAMED, events()), (STREAMED, [b"".join(events())])],
    ids=["whole", "stream", "stream-at-once"],
)
async def test_an_end_that_cannot_be_written_is_not_called_a_success_and_is_written_later(
    gateway: Gateway, body: dict[str, Any], pieces: list[bytes]
) -> None:
    if pieces:
        gateway.let_all_say(streaming(pieces))
    await gateway.ask({**body, "temperature": 1})
    start_bytes = FRAME.size + len(encode(gateway.starts()[0]))
    with full_disk(gateway, room_bytes=start_bytes + 8):  # a START fits, an END does not
        got = await gateway.ask(body)
        assert (len(gateway.starts()), len(gateway.ends())) == (2, 1)
    assert b"usage_log_unavailable" in got.body
    assert b"[DONE]" not in got.body
    await gateway.idle()
    await until(lambda: len(gateway.ends()) == 2)
    end = gateway.ends()[1]
    assert (end.state, end.prompt_tokens, end.completion_tokens) == ("engine_error", 0, 0)


@pytest.mark.parametrize("done", [True, False], ids=["the end", "progress"])
async def test_what_is_withheld_because_it_cannot_be_written_down_is_not_charged(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(meter, "PROGRESS_SECONDS", 0.0)
    go_on = asyncio.Event()

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"".join(events()[:2]))
        await go_on.wait()
        await response.write(b"".join(events(done=done)[2:]))
        await response.write_eof()
        return response

    gateway.let_all_say(say)
    running = gateway.exchange(STREAMED)
    work = asyncio.ensure_future(running.run())
    await until(lambda: b"Hel" in running.body)
    with full_disk(gateway):
        go_on.set()
        await work
        assert gateway.ends() == []
    assert b"usage_log_unavailable" in running.body
    assert b'"lo"' not in running.body
    await until(lambda: gateway.ends() != [])
    (end,) = gateway.ends()
    assert (end.state, end.completion_tokens, end.tokens_source) == ("engine_error", 1, "streamed")


async def test_at_the_logs_cap_what_runs_is_metered_and_nothing_new_is_served(gateway: Gateway) -> None:
    quota = gateway.runtime.wal.disk_quota
    assert quota is not None
    await gateway.ask()
    gateway.let_all_say(streaming(events(CHUNKS[:2], done=False), then_wait=True))
    running = gateway.exchange({**STREAMED, "temperature": 1})
    work = asyncio.ensure_future(running.run())
    await until(lambda: b"Hel" in running.body)
    cap, quota.max_bytes = quota.max_bytes, 1
    await until(lambda: quota.usage().is_full)
    for body in (HELLO, {**HELLO, "temperature": 1}):  # the first would be answered from memory
        got = await gateway.ask(body)
        assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
    running.disconnect.set()
    await work
    await until(lambda: [end.state for end in gateway.ends()] == ["complete", "client_gone"])
    assert len(gateway.starts()) == 2
    quota.max_bytes = cap
    await until(lambda: not quota.usage().is_full)
    assert (await gateway.ask()).answer_headers["x-cache"] == "hit"


async def test_a_hit_that_cannot_be_metered_is_not_served(gateway: Gateway) -> None:
    await gateway.ask()
    with full_disk(gateway):
        got = await gateway.ask()
    assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
    assert (await gateway.ask()).answer_headers["x-cache"] == "hit"


async def test_a_long_stream_writes_down_how_far_it_is(gateway: Gateway) -> None:
    words = [delta(f"w{number} ") for number in range(5)]
    gateway.let_all_say(streaming(events([CHUNKS[0], *words, *CHUNKS[3:]]), pause_seconds=0.3))
    await gateway.ask(STREAMED)
    counted = [record.completion_tokens for record in gateway.progress()]
    assert counted[0] == 1
    assert 2 <= len(counted) <= 3
    assert counted == sorted(counted)
    assert gateway.ends()[0].completion_tokens == 3  # the engine's own count is the one that is charged

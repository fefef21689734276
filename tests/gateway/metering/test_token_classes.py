"""Cache writes and reasoning, as engines report them, reach the usage log whatever the shape and the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from billing.wal.records import End
from tests.gateway.fixtures.protocol_replies import every_protocol
from tests.gateway.fixtures.scripted_app import CHUNKS, USAGE, answer, chunk, events, stream
from tests.gateway.fixtures.tenants import HELLO, Gateway

CLASSED = {
    **USAGE,
    "prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


async def classed(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Respond with usage in all classes."""
    if body.get("stream"):
        return await stream(request, events([*CHUNKS[:-1], chunk(usage=CLASSED)]))
    return web.json_response(answer(usage=CLASSED))


def classes(end: End) -> tuple[int, int, int, int, int]:
    """Return uncached prompt, of that written, cached prompt, completion, of that reasoning."""
    parts = (end.prompt_tokens, end.cache_write_tokens, end.cached_prompt_tokens)
    return (*parts, end.completion_tokens, end.reasoning_tokens)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_an_engine_reports_is_recorded(gateway: Gateway, streamed: bool) -> None:
    gateway.let_all_say(classed)
    await gateway.ask({**HELLO, "stream": streamed})
    [end] = gateway.ends()
    assert classes(end) == (8, 5, 4, 3, 2)
    assert (end.reported_prompt_tokens, end.reported_completion_tokens) == (12, 3)


async def test_messages_report_what_was_written(gateway: Gateway) -> None:
    gateway.let_all_say(every_protocol)
    await gateway.ask({**HELLO, "max_tokens": 5}, path="/v1/messages")
    [end] = gateway.ends()
    assert (classes(end), end.reported_prompt_tokens) == ((8, 2, 4, 3, 0), 12)


async def test_a_stored_response_has_no_classes_of_its_own(gateway: Gateway) -> None:
    gateway.let_all_say(classed)
    for _ in range(2):
        await gateway.ask(HELLO)
    hit = gateway.ends()[1]
    assert (hit.cache_result, classes(hit)) == ("hit", (0, 0, 0, 0, 0))
    assert (hit.reported_prompt_tokens, hit.reported_completion_tokens) == (None, None)

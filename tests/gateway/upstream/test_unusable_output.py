"""What an engine refuses after it has generated is its failure; what it refuses before is the client's."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fixtures.protocol_replies import MESSAGE_EVENTS, RESPONSE_EVENTS
from tests.gateway.fixtures.scripted_app import Say, events, hang_up, saying, streaming, text_of
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, Gateway

pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True)

MESSAGES = {"model": HELLO["model"], "messages": HELLO["messages"], "max_tokens": 9}
RESPONSES = {"model": HELLO["model"], "input": "Hello"}
CODE = "engine_output_invalid"
#: vLLM's own words about a tool call whose arguments are a string.
PYDANTIC = (
    "1 validation error for AnthropicContentBlock\ninput\n  Input should be a valid dictionary [type=dict_type, "
    "input_value='x', input_type=str]\n    For further information visit https://errors.pydantic.dev/2.14/v/dict_type"
)


def refusing_whole(streamed: Say) -> Say:
    """Refuse a request that is not streamed, as vLLM refuses its own output, and stream as ``streamed`` does."""

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        refuse = saying({"error": {"message": PYDANTIC, "type": "BadRequestError"}}, status=400)
        return await (streamed if body.get("stream") else refuse)(request, body)

    return say


@pytest.mark.parametrize(
    ("path", "body", "pieces"),
    [
        ("/v1/chat/completions", HELLO, events()),
        ("/v1/messages", MESSAGES, MESSAGE_EVENTS),
        ("/v1/responses", RESPONSES, RESPONSE_EVENTS),
    ],
    ids=["chat", "messages", "responses"],
)
async def test_output_that_the_engine_cannot_use_is_not_the_clients_fault(
    gateway: Gateway, path: str, body: dict[str, Any], pieces: list[bytes]
) -> None:
    gateway.let_all_say(refusing_whole(streaming(pieces, then_wait=True)))
    got = await gateway.ask(body, path=path)
    assert got.status == 502
    error = got.json["error"]
    assert "does not make a valid response" in error["message"]
    assert "pydantic" not in got.body.decode()
    assert (error["type"], error.get("code")) == ("api_error", None if path == "/v1/messages" else CODE)
    (end,) = gateway.ends()
    assert (end.state, end.http_status, end.prompt_tokens, end.completion_tokens) == ("engine_error", 502, 0, 0)
    await gateway.idle()


@pytest.mark.parametrize(
    "streamed",
    [
        saying({"error": {"message": PYDANTIC}}, status=400),
        streaming([b'data: {"error": {"message": "no", "code": 400}}\n\n', b"data: [DONE]\n\n"]),
        streaming(events()[:1]),
        hang_up,
    ],
    ids=["refused", "error_event", "no_token", "hung_up"],
)
async def test_a_refusal_without_a_token_stays_the_clients(gateway: Gateway, streamed: Say) -> None:
    gateway.let_all_say(refusing_whole(streamed))
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (400, "invalid_request")
    assert got.error["message"].endswith("input_type=str]")
    assert [end.state for end in gateway.ends()] == ["refused"]
    await gateway.idle()


async def test_a_stream_that_begins_with_a_refusal_is_answered_with_its_status(gateway: Gateway) -> None:
    refusal = b'data: {"error": {"message": "Unsupported type", "param": null, "code": 400}}\n\ndata: [DONE]\n\n'
    gateway.let_all_say(streaming([refusal]))
    got = await gateway.ask(STREAMED)
    assert (got.status, got.error["code"], got.error["message"]) == (400, "invalid_request", "Unsupported type")
    assert [(end.state, end.http_status) for end in gateway.ends()] == [("refused", 400)]
    assert len(gateway.bodies()) == 1
    await gateway.idle()


async def test_a_stream_that_begins_with_another_error_is_the_engines_failure(gateway: Gateway) -> None:
    gateway.let_all_say(streaming([b'data: {"error": {"message": "CUDA error", "code": 500}}\n\n']))
    got = await gateway.ask(STREAMED)
    assert text_of(got.events[:-1]) == ""
    assert b"engine_failed_mid_stream" in got.events[-1]

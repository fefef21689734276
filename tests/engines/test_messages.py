"""Anthropic's messages have the same shapes, events, counts and errors from both engines."""

import json
from typing import Any

import pytest

from tests.engines.events import listening
from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, Client, Replica

MESSAGES = "/v1/messages"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 6,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Hello there"}],
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
#: The tiny model spends most of them on blanks around the call.
CALLING: dict[str, Any] = ASKED | {
    "max_tokens": 500,
    "tools": [{"name": "weather", "description": "Tell it.", "input_schema": WEATHER}],
    "tool_choice": {"type": "tool", "name": "weather"},
}


async def told(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream; the name of each must match its data."""
    async with client.opened(MESSAGES, body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = (await response.text()).split("\n\n")
    assert events.pop() == ""
    parsed = []
    for event in events:
        name, data = event.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


async def test_a_message_has_vllms_fields(client: Client) -> None:
    body = (await client.post(MESSAGES, ASKED, headers={"X-Request-Id": "abc-3"})).body
    assert list(body) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert (body["id"], body["type"], body["role"]) == ("chatcmpl-abc-3", "message", "assistant")
    [block] = body["content"]
    assert (list(block), block["type"]) == (["type", "text"], "text")
    assert body["stop_reason"] == "max_tokens"
    assert body["usage"] == {
        "input_tokens": 11,
        "output_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


async def test_a_streamed_message_is_opened_filled_and_closed(client: Client) -> None:
    whole = (await client.post(MESSAGES, ASKED)).body["content"][0]["text"]
    start, opened, *deltas, closed, ended, stop = await told(client, ASKED)
    assert list(start["message"]) == [
        *("id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "usage"),
    ]
    assert start["message"]["usage"] == {"input_tokens": 11, "output_tokens": 0}
    assert (opened["content_block"], opened["index"]) == ({"type": "text", "text": ""}, 0)
    assert {(event["type"], event["delta"]["type"], event["index"]) for event in deltas} == {
        ("content_block_delta", "text_delta", 0)
    }
    assert "".join(event["delta"]["text"] for event in deltas) == whole
    assert closed == {"type": "content_block_stop", "index": 0}
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert (ended["usage"]["input_tokens"], ended["usage"]["output_tokens"]) == (11, 6)
    assert stop == {"type": "message_stop"}


async def test_a_stop_sequence_is_told(client: Client) -> None:
    body = ASKED | {"max_tokens": 200, "stop_sequences": ["e", "zzz"]}
    message = (await client.post(MESSAGES, body)).body
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "e")
    *_, ended, _stop = await told(client, body)
    assert ended["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "e"}


async def test_marks_of_what_to_cache_are_accepted(client: Client) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": "Hello", **mark}, {"type": "text", "text": "there"}]
    body = ASKED | {"system": [{"type": "text", "text": "Be brief", **mark}]}
    body["messages"] = [{"role": "user", "content": parts}]
    assert (await client.post(MESSAGES, body)).body["usage"]["input_tokens"] == 22


async def test_the_cache_is_accounted_for_in_anthropics_way(client: Client, salt: str) -> None:
    body = ASKED | {"messages": [{"role": "user", "content": "word " * 60}], "cache_salt": salt, "max_tokens": 1}
    first, second = [(await client.post(MESSAGES, body)).body["usage"] for _ in range(2)]
    whole = first["input_tokens"] + first["cache_creation_input_tokens"]
    cached = whole // BLOCK_TOKENS * BLOCK_TOKENS
    assert (first["cache_read_input_tokens"], first["cache_creation_input_tokens"]) == (0, cached)
    assert (second["cache_read_input_tokens"], second["cache_creation_input_tokens"]) == (cached, 0)
    assert second["input_tokens"] == whole - cached


async def test_the_salt_is_in_the_block_hashes(replica: Replica, client: Client, salt: str) -> None:
    messages = [{"role": "user", "content": "word " * 60}]
    tokens = (await client.post("/tokenize", {"messages": messages})).body["tokens"]
    async with listening(replica) as listener:
        body = ASKED | {"messages": messages, "cache_salt": salt, "max_tokens": 1}
        assert (await client.post(MESSAGES, body)).status == 200
        assert await listener.stored_under(salt) == list(chain(tokens, BLOCK_TOKENS, salt=salt))


async def test_tokens_are_counted_as_they_are_charged(client: Client) -> None:
    conversation = [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    asked = {"model": "tiny", "system": "Be brief", "messages": conversation}
    counted = (await client.post(f"{MESSAGES}/count_tokens", asked)).body
    charged = (await client.post(MESSAGES, asked | {"max_tokens": 1})).body["usage"]
    tokens = charged["input_tokens"] + charged["cache_creation_input_tokens"] + charged["cache_read_input_tokens"]
    assert counted == {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


async def test_a_tool_is_called(client: Client) -> None:
    message = (await client.post(MESSAGES, CALLING)).body
    [block] = message["content"]
    assert list(block) == ["type", "id", "name", "input"]
    assert (block["type"], block["name"], message["stop_reason"]) == ("tool_use", "weather", "tool_use")
    assert block["id"].startswith("chatcmpl-tool-")
    assert block["input"]["city"] in {"Paris", "Rome"}


async def test_a_call_is_streamed_as_json(client: Client) -> None:
    _start, opened, *deltas, _closed, ended, _stop = await told(client, CALLING)
    assert opened["content_block"]["type"] == "tool_use"
    assert (opened["content_block"]["name"], opened["content_block"]["input"]) == ("weather", {})
    assert {event["delta"]["type"] for event in deltas} == {"input_json_delta"}
    arguments = json.loads("".join(event["delta"]["partial_json"] for event in deltas))
    assert arguments["city"] in {"Paris", "Rome"}
    assert ended["delta"]["stop_reason"] == "tool_use"


BAD_SALT = (
    "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. "
    "(parameter=cache_salt)"
)
TOO_MANY = (
    "max_completion_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer output tokens. "
    "(parameter=max_completion_tokens, value=9000)"
)
EMPTY = "Cannot apply chat template to an empty conversation. Provide at least one message."
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.mark.parametrize(
    ("changes", "status", "kind", "message"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "The model `nope` does not exist. Valid aliases: tiny."),
        ({"max_tokens": 9000}, 400, "BadRequestError", TOO_MANY),
        ({"cache_salt": "a/b"}, 400, "BadRequestError", BAD_SALT),
        ({"messages": []}, 400, "BadRequestError", EMPTY),
        (
            {"temperature": -1},
            400,
            "BadRequestError",
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            400,
            "BadRequestError",
            "tiny is not a multimodal model",
        ),
    ],
    ids=["model", "max_tokens", "salt", "empty", "temperature", "image"],
)
async def test_a_bad_value_is_told_in_anthropics_envelope(
    client: Client, changes: dict[str, Any], status: int, kind: str, message: str
) -> None:
    reply = await client.post(MESSAGES, ASKED | changes)
    error = {"type": "error", "error": {"type": kind, "message": message}}
    assert (reply.status, reply.body) == (status, error)


@pytest.mark.parametrize(
    ("body", "param", "finding"),
    [
        (
            {"model": "tiny", "messages": []},
            "body.max_tokens",
            "{'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field required', 'input': '<dict of 2 items>'}",
        ),
        (
            ASKED | {"max_tokens": 0},
            "body.max_tokens",
            "{'type': 'value_error', 'loc': 'body.max_tokens', 'msg': 'Value error, max_tokens must be positive', "
            "'input': '0', 'ctx': {'error': ValueError('max_tokens must be positive')}}",
        ),
        (
            ASKED | {"messages": "x"},
            "body.messages",
            "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': 'x'}",
        ),
    ],
    ids=["missing", "zero", "type"],
)
async def test_a_body_of_the_wrong_shape_is_told_in_openais(
    client: Client, body: dict[str, Any], param: str, finding: str
) -> None:
    reply = await client.post(MESSAGES, body)
    message = f"1 validation error:\n  {finding}"
    error = {"message": message, "type": "Bad Request", "param": param, "code": 400}
    assert (reply.status, reply.body) == (400, {"error": error})

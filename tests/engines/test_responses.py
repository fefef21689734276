"""OpenAI's responses have the same shapes, events, counts and errors from both engines."""

import json
from typing import Any

import pytest

from tests.engines.events import listening
from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, Client, Replica
from tests.engines.test_messages import WEATHER

RESPONSES = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "Hello there", "max_output_tokens": 6, "temperature": 0}
FIELDS = [
    *("id", "created_at", "incomplete_details", "instructions", "metadata", "model", "object", "output"),
    *("parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "max_output_tokens"),
    *("max_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "status", "text"),
    *("top_logprobs", "truncation", "usage", "user", "presence_penalty", "frequency_penalty"),
    *("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"),
]
CALLING: dict[str, Any] = ASKED | {
    "max_output_tokens": 500,
    "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
    "tool_choice": "required",
}


async def told(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a stream, numbered from zero; the name of each must match its data."""
    async with client.opened(RESPONSES, body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        events = (await response.text()).split("\n\n")
    assert events.pop() == ""
    parsed = []
    for number, event in enumerate(events):
        name, data = event.split("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert (name, parsed[-1]["sequence_number"]) == (f"event: {parsed[-1]['type']}", number)
    return parsed


async def test_a_response_has_vllms_fields(client: Client) -> None:
    body = (await client.post(RESPONSES, ASKED, headers={"X-Request-Id": "abc-4"})).body
    assert list(body) == FIELDS
    assert body["object"] == "response"
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (body["tool_choice"], body["tools"], body["max_output_tokens"]) == ("none", [], 6)
    [item] = body["output"]
    assert list(item) == ["id", "content", "role", "status", "type", "phase"]
    [part] = item["content"]
    assert list(part) == ["annotations", "text", "type", "logprobs"]
    assert (part["type"], bool(part["text"])) == ("output_text", True)
    assert body["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": 6,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": 17,
    }


async def test_a_response_ends_by_itself(client: Client) -> None:
    body = (await client.post(RESPONSES, ASKED | {"max_output_tokens": 2000})).body
    assert (body["status"], body["incomplete_details"]) == ("completed", None)


async def test_a_streamed_response_tells_its_parts_and_then_the_whole(client: Client) -> None:
    created, begun, item, part, *deltas, text, part_done, item_done, completed = await told(client, ASKED)
    kinds = [event["type"] for event in (created, begun, item, part, text, part_done, item_done, completed)]
    assert kinds == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert {event["type"] for event in deltas} == {"response.output_text.delta"}
    assert list(created["response"]) == list(completed["response"]) == FIELDS
    assert (created["response"]["status"], created["response"]["usage"]) == ("in_progress", None)
    said = "".join(event["delta"] for event in deltas)
    assert said == text["text"] == part_done["part"]["text"] == item_done["item"]["content"][0]["text"]
    assert completed["response"]["output"] == [item_done["item"]]
    assert completed["response"]["usage"]["output_tokens"] == 6
    named = {event["item_id"] for event in (part, *deltas, text, part_done)}
    assert named == {item["item"]["id"]} == {item_done["item"]["id"]}


async def test_the_input_may_be_a_conversation(client: Client) -> None:
    given = [
        {"role": "user", "content": "Hello there"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    body = (await client.post(RESPONSES, ASKED | {"input": given, "instructions": "Be brief"})).body
    assert (body["usage"]["input_tokens"], body["instructions"]) == (44, "Be brief")


async def test_log_probabilities_are_told_when_included(client: Client) -> None:
    body = ASKED | {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    entries = (await client.post(RESPONSES, body)).body["output"][0]["content"][0]["logprobs"]
    assert len(entries) == 6
    assert set(entries[0]) == {"token", "logprob", "bytes", "top_logprobs"}


async def test_the_salt_is_in_the_block_hashes(replica: Replica, client: Client, salt: str) -> None:
    words = "word " * 60
    tokens = (await client.post("/tokenize", {"messages": [{"role": "user", "content": words}]})).body["tokens"]
    async with listening(replica) as listener:
        asked = ASKED | {"input": words, "cache_salt": salt, "max_output_tokens": 1}
        first = (await client.post(RESPONSES, asked)).body["usage"]["input_tokens_details"]
        assert await listener.stored_under(salt) == list(chain(tokens, BLOCK_TOKENS, salt=salt))
    again = (await client.post(RESPONSES, asked)).body["usage"]["input_tokens_details"]
    full = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    assert (first["cached_tokens"], first["cache_write_tokens"]) == (0, full)
    assert (again["cached_tokens"], again["cache_write_tokens"]) == (full, 0)


async def test_a_function_is_called(client: Client) -> None:
    body = (await client.post(RESPONSES, CALLING)).body
    [item] = body["output"]
    assert list(item) == [
        *("arguments", "call_id", "name", "type", "id", "async", "caller", "namespace", "status"),
    ]
    assert (item["type"], item["name"], body["status"]) == ("function_call", "weather", "completed")
    assert json.loads(item["arguments"])["city"] in {"Paris", "Rome"}
    assert list(body["tools"][0]) == [
        *("name", "parameters", "strict", "type"),
        *("allowed_callers", "async", "defer_loading", "description", "output_schema"),
    ]


async def test_a_call_is_streamed_as_json(client: Client) -> None:
    _created, _begun, item, *deltas, done, item_done, completed = await told(client, CALLING)
    assert (item["item"]["type"], item["item"]["arguments"]) == ("function_call", "")
    assert {event["type"] for event in deltas} == {"response.function_call_arguments.delta"}
    assert done["type"] == "response.function_call_arguments.done"
    assert "".join(event["delta"] for event in deltas) == done["arguments"] == item_done["item"]["arguments"]
    assert completed["response"]["output"] == [item_done["item"]]


async def test_a_schema_holds(client: Client) -> None:
    wanted = {"format": {"type": "json_schema", "name": "weather", "schema": WEATHER}}
    body = (await client.post(RESPONSES, ASKED | {"max_output_tokens": 60, "text": wanted})).body
    assert json.loads(body["output"][0]["content"][0]["text"])["city"] in {"Paris", "Rome"}


@pytest.mark.parametrize(
    ("changes", "status", "kind", "param", "message"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model", "The model `nope` does not exist. Valid aliases: tiny."),
        (
            {"max_output_tokens": 9000},
            400,
            "BadRequestError",
            "max_output_tokens",
            "max_output_tokens=9000 cannot be greater than max_model_len=8192. Please request fewer output tokens. "
            "(parameter=max_output_tokens, value=9000)",
        ),
        (
            {"max_output_tokens": 0},
            400,
            "BadRequestError",
            "max_tokens",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        (
            {"previous_response_id": "resp_x"},
            404,
            "invalid_request_error",
            "response_id",
            "Response with id 'resp_x' not found.",
        ),
        (
            {"input": []},
            400,
            "BadRequestError",
            None,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
        (
            {"input": 5},
            400,
            "Bad Request",
            "body.input",
            "2 validation errors:\n"
            "  {'type': 'string_type', 'loc': 'body.input', 'msg': 'Input should be a valid string', 'input': '5'}\n"
            "  {'type': 'list_type', 'loc': 'body.input', 'msg': 'Input should be a valid list', 'input': '5'}",
        ),
    ],
    ids=["model", "too_many", "none", "earlier", "empty", "type"],
)
async def test_a_bad_value_is_named(
    client: Client, changes: dict[str, Any], status: int, kind: str, param: str | None, message: str
) -> None:
    reply = await client.post(RESPONSES, ASKED | changes)
    error = {"message": message, "type": kind, "param": param, "code": status}
    assert (reply.status, reply.body) == (status, {"error": error})

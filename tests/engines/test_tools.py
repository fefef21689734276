"""Tool calls and replies that follow a schema are the same from both engines."""

import json
from typing import Any

import pytest

from tests.engines.replica import Client
from tests.engines.test_messages import WEATHER

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
NAMED = {"type": "function", "function": {"name": "weather"}}
#: The tiny model spends most of its tokens on blanks around the call.
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 500, "temperature": 0}


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": False}], ids=["unsaid", "strict", "free"])
@pytest.mark.parametrize(("choice", "finish"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"])
async def test_a_tool_is_called(client: Client, choice: object, finish: str, strict: dict[str, bool]) -> None:
    tool = {"type": "function", "function": TOOL["function"] | strict}
    [answer] = (await client.post(CHAT, ASKED | {"tools": [tool], "tool_choice": choice})).body["choices"]
    message = answer["message"]
    assert list(message) == [
        *("role", "content", "refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning"),
    ]
    assert (message["content"], answer["finish_reason"]) == ("", finish)
    [call] = message["tool_calls"]
    assert list(call) == ["id", "type", "function"]
    assert (call["id"][:14], call["type"]) == ("chatcmpl-tool-", "function")
    assert list(call["function"]) == ["name", "arguments"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in {"Paris", "Rome"}


async def test_a_call_is_streamed_with_its_name_first(client: Client) -> None:
    chunks = await client.stream(CHAT, ASKED | {"tools": [TOOL], "tool_choice": "required"})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    # A busy engine sends the end of the call with its last chunk, which is empty otherwise.
    calls = [delta["tool_calls"][0] for delta in deltas[1:] if delta.get("tool_calls")]
    assert list(calls[0]) == ["id", "type", "index", "function"]
    assert calls[0]["function"] == {"name": "weather"}
    assert {tuple(call) for call in calls[1:]} == {("index", "function")}
    arguments = "".join(call["function"]["arguments"] for call in calls[1:])
    assert json.loads(arguments)["city"] in {"Paris", "Rome"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "none", None])
async def test_a_model_need_not_call(client: Client, choice: str | None) -> None:
    body = ASKED | {"tools": [TOOL], "max_tokens": 4} | ({"tool_choice": choice} if choice else {})
    [answer] = (await client.post(CHAT, body)).body["choices"]
    assert answer["message"]["content"]
    assert "tool_calls" not in answer["message"]


async def test_the_result_of_a_call_is_part_of_the_prompt(client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    body = (await client.post(CHAT, ASKED | {"messages": turns, "max_tokens": 1})).body
    assert body["usage"]["prompt_tokens"] == 27


async def test_a_schema_holds(client: Client) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
    [answer] = (await client.post(CHAT, ASKED | {"response_format": wanted})).body["choices"]
    assert json.loads(answer["message"]["content"])["city"] in {"Paris", "Rome"}
    assert answer["finish_reason"] == "stop"


async def test_any_json_can_be_asked_for(client: Client) -> None:
    [answer] = (await client.post(CHAT, ASKED | {"response_format": {"type": "json_object"}})).body["choices"]
    assert isinstance(json.loads(answer["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"tools": []}, "tools", "must not be an empty array. Either provide at least one tool or omit the field"),
        ({"tool_choice": "auto"}, "tool_choice", "When using `tool_choice`, `tools` must be set."),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
            "tool_choice",
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
        ),
        ({"max_completion_tokens": 9000}, "max_completion_tokens", "max_completion_tokens=9000 cannot be greater"),
    ],
    ids=["empty", "without", "unknown", "schema", "too_many"],
)
async def test_a_bad_value_is_named(client: Client, changes: dict[str, Any], param: str, message: str) -> None:
    reply = await client.post(CHAT, ASKED | changes)
    error = reply.body["error"]
    assert (reply.status, error["type"], error["param"]) == (400, "BadRequestError", param)
    assert message in error["message"]

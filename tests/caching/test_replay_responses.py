"""A response replayed as events is what OpenAI's client expects, and its last event contains all of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from caching.replay import responses
from tests.caching.response_fixtures import responses as some_response

EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def told(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the data of each event; event names must equal their types."""
    parsed = []
    for raw in responses.stream(response):
        name, _, data = raw.partition(b"\n")
        parsed.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == f"event: {parsed[-1]['type']}".encode()
    return parsed


@settings(max_examples=50)
@given(some_response)
def test_the_last_event_carries_the_whole_response_and_each_has_its_number(response: dict[str, Any]) -> None:
    events = told(response)
    assert (events[-1]["type"], events[-1]["response"]) == ("response.completed", response)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert responses.is_whole(response)


@settings(max_examples=50)
@given(some_response)
def test_the_official_client_follows_the_events_to_the_same_response(response: dict[str, Any]) -> None:
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    said: list[str] = []
    for event in told(response):
        EVENTS.validate_python(event)
        typed: Any = construct_type(type_=ResponseStreamEvent, value=event)
        said += [out.delta for out in state.handle_event(typed) if out.type == "response.output_text.delta"]
    final = state._completed_response
    assert final is not None
    expected: Any = construct_type(type_=Response, value=response)
    assert final.output_text == "".join(said)
    assert _shown(final) == _shown(expected)


def test_each_kind_of_item_is_told_in_its_own_events() -> None:
    spoken: dict[str, Any] = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": None}
    output: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "status": "completed",
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [spoken]},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "f",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    kinds = [(event["type"], event.get("output_index")) for event in told({"id": "resp_1", "output": output})]
    assert kinds == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", 0),
        ("response.content_part.added", 0),
        ("response.reasoning_text.delta", 0),
        ("response.reasoning_text.done", 0),
        ("response.content_part.done", 0),
        ("response.output_item.done", 0),
        ("response.output_item.added", 1),
        ("response.content_part.added", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.done", 1),
        ("response.content_part.done", 1),
        ("response.output_item.done", 1),
        ("response.output_item.added", 2),
        ("response.function_call_arguments.delta", 2),
        ("response.function_call_arguments.done", 2),
        ("response.output_item.done", 2),
        ("response.output_item.added", 3),
        ("response.output_item.done", 3),
        ("response.completed", None),
    ]


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, True),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, True),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, False),
        ({"status": "incomplete"}, False),
        ({"status": "failed"}, False),
        ({"status": "cancelled"}, False),
        ({"status": "in_progress"}, False),
        ({"usage": None}, False),
        ({"output": None}, False),
    ],
)
def test_a_response_is_whole_when_it_or_its_limit_ended_it(changes: dict[str, Any], whole: bool) -> None:
    ended: dict[str, Any] = {"status": "completed", "incomplete_details": None, "usage": {"total_tokens": 1}}
    ended["output"] = []
    assert responses.is_whole({**ended, **changes}) is whole


def _shown(response: Response) -> dict[str, Any]:
    """Return a response's fields without those that the client derives."""
    found = response.to_dict(exclude_none=True)
    for item in found["output"]:  # type: ignore[attr-defined]
        for part in (item, *(item.get("content") or ())):
            for name in ("parsed", "parsed_arguments"):
                part.pop(name, None)
    return found

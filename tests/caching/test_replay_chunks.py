"""Folding a stream gives the response, replaying a response gives an equal stream, and OpenAI's client reads both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import orjson
import pytest
from hypothesis import given
from openai import OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from caching.errors import NotReplayable
from caching.replay import chunks as replay
from tests.caching.response_fixtures import chats, completions

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def told(answer: dict[str, Any], *, include_usage: bool = True) -> list[bytes]:
    """Return the events of a replayed response."""
    return list(replay.stream(answer, include_usage=include_usage))


def chunks(events: list[bytes]) -> list[dict[str, Any]]:
    """Return the JSON of every event but the last, ``[DONE]``."""
    assert events[-1] == b"data: [DONE]\n\n"
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events)
    return [orjson.loads(event.removeprefix(b"data: ")) for event in events[:-1]]


@given(chats)
def test_a_chat_answer_told_as_a_stream_folds_back_into_itself(answer: dict[str, Any]) -> None:
    assert replay.fold(told(answer)) == answer


@given(completions)
def test_a_completion_told_as_a_stream_folds_back_into_itself(answer: dict[str, Any]) -> None:
    assert replay.fold(told(answer)) == answer


@given(chats)
def test_the_official_client_adds_the_chunks_up_to_the_same_answer(answer: dict[str, Any]) -> None:
    state = ChatCompletionStreamState()
    for chunk in chunks(told(answer)):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    added = state.current_completion_snapshot.to_dict()
    expected = ChatCompletion.model_validate(answer, strict=True).to_dict()
    for choice, one in zip(added["choices"], expected["choices"], strict=True):  # type: ignore[call-overload]
        # the client combines text and calls, but not an engine's own fields
        assert (choice["message"].get("content") or "") == (one["message"].get("content") or "")
        assert choice["finish_reason"] == one["finish_reason"]
        calls = [_call(call) for call in choice["message"].get("tool_calls") or []]
        assert calls == [_call(call) for call in one["message"].get("tool_calls") or []]
        assert (choice.get("logprobs") or {}).get("content") == (one.get("logprobs") or {}).get("content")
    assert added["usage"] == expected["usage"]


@given(completions)
def test_completion_chunks_are_what_the_official_client_expects(answer: dict[str, Any]) -> None:
    parsed = [Completion.model_validate(chunk, strict=True) for chunk in chunks(told(answer))]
    assert [choice.text for chunk in parsed for choice in chunk.choices] == [c["text"] for c in answer["choices"]]


@given(chats | completions)
def test_usage_comes_in_one_last_chunk_without_choices_and_only_when_asked_for(answer: dict[str, Any]) -> None:
    asked, unasked = chunks(told(answer)), chunks(told(answer, include_usage=False))
    assert asked[:-1] == unasked
    assert (asked[-1]["choices"], asked[-1]["usage"]) == ([], answer["usage"])
    assert not any("usage" in chunk for chunk in unasked)


@given(chats | completions)
def test_every_chunk_carries_the_answers_id_model_and_time(answer: dict[str, Any]) -> None:
    kind = answer["object"] + (".chunk" if answer["object"] == "chat.completion" else "")
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks(told(answer))}
    assert heads == {(answer["id"], kind, answer["created"], "demo")}


#: A stream as vLLM 0.32 sends it: a tool call in pieces, then a second choice, then usage.
ENGINE_STREAM: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {
        "choices": [
            {
                "index": 0,
                "delta": {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}]},
            }
        ]
    },
    {"choices": [{"index": 1, "delta": {"content": "Hel"}, "logprobs": {"content": [{"token": "Hel"}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}}]},
    {"choices": [{"index": 1, "delta": {"content": "lo"}, "logprobs": {"content": [{"token": "lo"}]}}]},
    {"choices": [{"index": 1, "delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}]},
    {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": USAGE, "system_fingerprint": "fp"},
]
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "demo"}


def engine_events(stream: list[dict[str, Any]]) -> list[bytes]:
    """Return the events of an engine."""
    return [*(replay.event({**HEAD, **chunk}) for chunk in stream), replay.DONE]


def test_a_real_shaped_stream_folds_into_the_answer_it_tells() -> None:
    assert replay.fold(engine_events(ENGINE_STREAM)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "demo",
        "system_fingerprint": "fp",
        "usage": USAGE,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                    ],
                },
                "finish_reason": "tool_calls",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "Hello"},
                "logprobs": {"content": [{"token": "Hel"}, {"token": "lo"}]},
                "finish_reason": "stop",
            },
        ],
    }


@pytest.mark.parametrize("missing", range(len(ENGINE_STREAM)))
def test_a_stream_without_its_usage_or_a_finish_is_not_an_answer(missing: int) -> None:
    cut = engine_events(ENGINE_STREAM[:missing])
    with pytest.raises(NotReplayable):
        replay.fold(cut)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_was_cut_off_is_not_kept(reason: str) -> None:
    ended: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    with pytest.raises(NotReplayable, match="unfinished"):
        replay.fold(engine_events([*ENGINE_STREAM[:-2], ended, ENGINE_STREAM[-1]]))


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"error": {"message": "out of memory"}}, "error"),
        ({"choices": [{"index": 0, "delta": {"audio": {"data": "…"}}}]}, "audio"),
        ({"choices": [{"index": 0, "delta": {}, "inner": {"a": 1}}]}, "inner"),
        ({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": {}}}]}, "logprobs"),
        ({"choices": [{"delta": {"content": "no index"}}]}, "malformed"),
        ({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}]}, "malformed"),
        ({"choices": [{"index": 0, "delta": "text"}]}, "malformed"),
        ({"choices": 1}, "malformed"),
    ],
)
def test_a_part_that_cannot_be_added_up_is_named(odd: dict[str, Any], named: str) -> None:
    with pytest.raises(NotReplayable, match=named):
        replay.fold(engine_events([*ENGINE_STREAM[:-1], odd, ENGINE_STREAM[-1]]))


@pytest.mark.parametrize("junk", [b"data: {\n\n", b"data: []\n\n", b"data: 1\n\n"])
def test_an_event_that_is_no_chunk_makes_no_answer(junk: bytes) -> None:
    with pytest.raises(NotReplayable):
        replay.fold([junk, *engine_events(ENGINE_STREAM)])


def test_usage_beside_a_choice_is_not_that_of_the_answer() -> None:
    early = {"usage": {**USAGE, "completion_tokens": 1}}
    stream = [{**chunk, **early} if chunk["choices"] else chunk for chunk in ENGINE_STREAM]
    assert replay.fold(engine_events(stream)) == replay.fold(engine_events(ENGINE_STREAM))
    with pytest.raises(NotReplayable, match="unfinished"):
        replay.fold(engine_events(stream[:-1]))


def test_what_only_a_whole_answer_tells_stays_out_of_its_stream() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    alone = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    more = {**alone, "choices": [{**choice, "routed_experts": None}], "metrics": None, "prompt_logprobs": None}
    assert told(more) == told(alone)


def test_no_events_make_no_answer() -> None:
    with pytest.raises(NotReplayable):
        replay.fold([])


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        ({"choices": [{"finish_reason": "stop"}], "usage": USAGE}, True),
        ({"choices": [{"finish_reason": "length"}, {"finish_reason": "tool_calls"}], "usage": USAGE}, True),
        ({"choices": [{"finish_reason": "repetition"}], "usage": USAGE}, True),
        ({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}], "usage": USAGE}, False),
        ({"choices": [{"finish_reason": "error"}], "usage": USAGE}, False),
        ({"choices": [{"finish_reason": "content_filter"}], "usage": USAGE}, False),
        ({"choices": [{"finish_reason": "a reason nobody knows yet"}], "usage": USAGE}, False),
        ({"choices": [{"finish_reason": None}], "usage": USAGE}, False),
        ({"choices": [{}], "usage": USAGE}, False),
        ({"choices": [], "usage": USAGE}, False),
        ({"choices": [{"finish_reason": "stop"}], "usage": None}, False),
        ({"error": {"message": "no"}}, False),
    ],
)
def test_an_answer_is_whole_when_every_choice_came_to_its_own_end(answer: dict[str, Any], whole: bool) -> None:
    assert replay.is_whole(answer) is whole


def test_the_official_client_reads_a_replayed_stream_over_http() -> None:
    answer = replay.fold(engine_events(ENGINE_STREAM))
    with serving(b"".join(told(answer))) as client:
        stream = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hi"}], stream=True)
        seen = list(stream)
    text = "".join(choice.delta.content or "" for chunk in seen for choice in chunk.choices if choice.index == 1)
    assert text == "Hello"
    usage = seen[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 2, 5)


@contextmanager
def serving(body: bytes) -> Iterator[OpenAI]:
    """Serve these bytes for every POST, and yield an official client that connects there."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="any", max_retries=0) as client:
            yield client
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _call(call: dict[str, Any]) -> tuple[str, str, str]:
    return call["id"], call["function"]["name"], call["function"]["arguments"]

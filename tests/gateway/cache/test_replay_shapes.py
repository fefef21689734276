"""A response stored in one shape is replayed in both, and official clients read it like the engine's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import orjson
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.gateway.fixtures.scripted_app import saying, streaming
from tests.gateway.fixtures.stored_responses import (
    MESSAGE_EVENTS,
    RESPONSE,
    RESPONSE_EVENTS,
    STREAMS,
    WHOLE,
    in_both_shapes,
)
from tests.gateway.fixtures.tenants import MODEL, Gateway, until

pytestmark = [pytest.mark.django_db(transaction=True)]

SAID: Any = [{"role": "user", "content": "Hello"}]
FUNCTION: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "n": 2},
    "/v1/completions": {"prompt": "Hello", "n": 2},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/responses": {"input": "Hello"},
}
ASKED = [pytest.param(path, {"model": MODEL, "temperature": 0, **body}, id=path) for path, body in BODIES.items()]
#: Asks with one seed, so that each has a name of its own, and headers; returns what the client made of the answer.
Ask = Callable[[Gateway, int, dict[str, str], bool], Awaitable[Any]]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_an_answer_stored_from_a_stream_is_the_engines_whole_answer(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    gateway.let_all_say(in_both_shapes())
    first = await gateway.ask({**body, "stream": True}, path=path)
    whole = await gateway.ask(body, path=path)
    stranger = await gateway.ask(body, path=path, key=gateway.world.globex.secret)
    assert [one.answer_headers["x-cache"] for one in (first, whole, stranger)] == ["miss", "hit", "miss"]
    assert _without_null(whole.json) == _without_null(WHOLE[path])
    assert len(gateway.bodies()) == 2


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_an_answer_stored_whole_is_told_as_a_stream_with_a_usage_that_was_asked_for(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    gateway.let_all_say(in_both_shapes())
    whole = await gateway.ask(body, path=path)
    told = await gateway.ask({**body, "stream": True}, path=path)
    assert [one.answer_headers["x-cache"] for one in (whole, told)] == ["miss", "hit"]
    assert told.answer_headers["content-type"].startswith("text/event-stream")
    assert told.events[-1].startswith(STREAMS[path][-1][:12])
    assert (b'"usage":{' in told.body) == (path in {"/v1/messages", "/v1/responses"})
    assert len(gateway.bodies()) == 1


@pytest.mark.parametrize("level", ["flight", "first", "redis"])
@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_kept_answer_that_has_no_form_as_a_stream_is_none_for_who_asks_for_one(
    gateway: Gateway, path: str, body: dict[str, Any], level: str
) -> None:
    bare = {name: value for name, value in WHOLE[path].items() if name not in {"object", "content"}}
    if path == "/v1/responses":
        bare["output"] = [{"id": "no type"}]
    gateway.let_all_say(saying(bare))
    kept = await gateway.ask(body, path=path)
    gateway.let_all_say(in_both_shapes())
    await until(gateway.runtime.components.prediction_cache.local_bytes)
    if level == "redis":
        gateway.runtime.components.prediction_cache.clear_local()
    alone = {} if level == "flight" else {"x-prediction-cache": "read"}  # led and followed by nobody
    streamed = await gateway.ask({**body, "stream": True}, path=path, headers=alone)
    again = await gateway.ask(body, path=path)
    assert [one.answer_headers["x-cache"] for one in (kept, streamed, again)] == ["miss", "miss", "hit"]
    assert streamed.events == [event.rstrip() for event in STREAMS[path] if not _is_only_usage(event)]
    charged = [(end.cache_result, end.state, end.tokens_source) for end in gateway.ends()]
    assert charged == [("miss", "complete", "engine")] * 2 + [("hit", "complete", "cache")]


async def openai_chat(gateway: Gateway, seed: int, headers: dict[str, str], stream: bool) -> Any:
    """Chat through OpenAI's client and the helper of its streams."""
    async with _openai(gateway) as client:
        asked: Any = {"model": MODEL, "messages": SAID, "seed": seed, "extra_headers": headers, "tools": [FUNCTION]}
        asked |= {"n": 2, "logprobs": True, "top_logprobs": 1}
        if not stream:
            return (await client.chat.completions.create(**asked)).to_dict()
        asked["stream_options"] = {"include_usage": True}
        async with client.chat.completions.stream(**asked) as events:
            return (await events.get_final_completion()).to_dict()


async def openai_completion(gateway: Gateway, seed: int, headers: dict[str, str], stream: bool) -> Any:
    """Complete through OpenAI's client, which adds nothing up itself."""
    async with _openai(gateway) as client:
        asked: Any = {"model": MODEL, "prompt": "Hello", "seed": seed, "extra_headers": headers, "n": 2, "logprobs": 1}
        if not stream:
            return (await client.completions.create(**asked)).to_dict()
        texts: dict[int, str] = {}
        ends: dict[int, str | None] = {}
        async for chunk in await client.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                ends[choice.index] = choice.finish_reason
        return texts, ends


async def openai_response(gateway: Gateway, seed: int, headers: dict[str, str], stream: bool) -> Any:
    """Respond through OpenAI's client and the helper of its streams."""
    async with _openai(gateway) as client:
        asked: Any = {"model": MODEL, "input": "Hello", "extra_body": {"seed": seed}, "extra_headers": headers}
        if not stream:
            return (await client.responses.create(**asked)).to_dict()
        async with client.responses.stream(**asked) as events:
            said = [str(getattr(event, "delta", "")) async for event in events]
            return "".join(said), (await events.get_final_response()).to_dict()


async def anthropic_message(gateway: Gateway, seed: int, headers: dict[str, str], stream: bool) -> Any:
    """Send a message through Anthropic's client and the helper of its streams."""
    async with anthropic.AsyncAnthropic(
        base_url="http://127.0.0.1", api_key=gateway.world.acme.secret, max_retries=0, http_client=_http(gateway)
    ) as client:
        asked: Any = {"model": MODEL, "messages": SAID, "max_tokens": 9, "extra_headers": headers}
        asked["extra_body"] = {"seed": seed}
        if not stream:
            return (await client.messages.create(**asked)).to_dict()
        async with client.messages.stream(**asked) as events:
            said = "".join([text async for text in events.text_stream])
            return said, (await events.get_final_message()).to_dict()


async def langchain_chat(gateway: Gateway, seed: int, headers: dict[str, str], stream: bool) -> Any:
    """Chat through LangChain, which adds chunks up in its own way."""
    chat = ChatOpenAI(
        base_url="http://127.0.0.1/v1",
        api_key=SecretStr(gateway.world.acme.secret),
        model=MODEL,
        seed=seed,
        max_retries=0,
        default_headers=headers,
        http_async_client=_http(gateway),
        stream_usage=True,
    )
    if not stream:
        found = await chat.ainvoke("Hello")
        return found.content, found.usage_metadata
    added: AIMessageChunk | None = None
    async for chunk in chat.astream("Hello"):
        assert isinstance(chunk, AIMessageChunk)
        added = chunk if added is None else added + chunk
    assert added is not None
    calls = [(call["id"], call["name"], call["args"]) for call in added.tool_calls]
    return added.content, added.usage_metadata, calls, added.response_metadata.get("finish_reason")


@pytest.mark.parametrize(
    "ask",
    [openai_chat, openai_completion, openai_response, anthropic_message, langchain_chat],
    ids=lambda ask: ask.__name__,
)
async def test_a_client_reads_a_replayed_answer_as_it_reads_the_engines_own(gateway: Gateway, ask: Ask) -> None:
    gateway.let_all_say(in_both_shapes())
    own = {stream: await ask(gateway, 0, {"cache-control": "no-store"}, stream) for stream in (False, True)}
    for seed, stored_as in ((1, False), (2, True)):
        assert await ask(gateway, seed, {}, stored_as) == own[stored_as]
        assert _bare(await ask(gateway, seed, {}, not stored_as)) == _bare(own[not stored_as])
        assert _bare(await ask(gateway, seed, {}, stored_as)) == _bare(own[stored_as])
    assert len(gateway.bodies()) == 4


@pytest.mark.parametrize("field", ["user", "metadata", "service_tier"])
async def test_a_response_that_repeats_a_field_is_given_only_to_the_same_one(gateway: Gateway, field: str) -> None:
    gateway.let_all_say(in_both_shapes())
    body = {"model": MODEL, "input": "Hello", "temperature": 0}
    values: list[Any] = [{"a": "1"}, {"a": "2"}] if field == "metadata" else ["default", "flex"]
    for value in values:
        assert (await gateway.ask({**body, field: value}, path="/v1/responses")).answer_headers["x-cache"] == "miss"
    again = await gateway.ask({**body, field: values[0], "safety_identifier": "x"}, path="/v1/responses")
    assert again.answer_headers["x-cache"] == "hit"


@pytest.mark.parametrize("status", ["failed", "cancelled", "incomplete"])
async def test_a_response_that_did_not_end_by_itself_is_not_kept(gateway: Gateway, status: str) -> None:
    cut = {**RESPONSE, "status": status, "incomplete_details": {"reason": "content_filter"}}
    ending = RESPONSE_EVENTS[-1].replace(orjson.dumps(RESPONSE), orjson.dumps(cut))
    assert ending != RESPONSE_EVENTS[-1]
    gateway.let_all_say(streaming([*RESPONSE_EVENTS[:-1], ending]))
    for _ in range(2):
        got = await gateway.ask({"model": MODEL, "input": "a", "seed": 1, "stream": True}, path="/v1/responses")
        assert got.answer_headers["x-cache"] == "miss"


async def test_a_message_whose_call_was_cut_is_passed_on_and_not_kept(gateway: Gateway) -> None:
    cut = [event for event in MESSAGE_EVENTS if b'ris\\"}' not in event]
    assert len(cut) == len(MESSAGE_EVENTS) - 1
    gateway.let_all_say(streaming(cut))
    body = {"model": MODEL, "messages": SAID, "max_tokens": 9, "temperature": 0, "stream": True}
    for _ in range(2):
        got = await gateway.ask(body, path="/v1/messages")
        assert (got.answer_headers["x-cache"], got.body) == ("miss", b"".join(cut))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_asks_for_nothing_that_only_a_whole_answer_tells(gateway: Gateway, path: str) -> None:
    body = {"model": MODEL, **BODIES[path], "stream": True}
    got = await gateway.ask({**body, "prompt_logprobs": 1}, path=path)
    assert (got.status, got.error["param"]) == (400, "prompt_logprobs")
    assert gateway.bodies() == []


async def test_a_long_stream_is_kept_too(gateway: Gateway) -> None:
    told = [event for event in STREAMS["/v1/chat/completions"] if b"Gr" in event]
    events = [*STREAMS["/v1/chat/completions"][:2], *told * 2000, *STREAMS["/v1/chat/completions"][2:]]
    gateway.let_all_say(streaming([b"".join(events)]))
    body = {"model": MODEL, "messages": SAID, "temperature": 0, "n": 2}
    first = await gateway.ask({**body, "stream": True})
    assert len(first.events) == len(events) - 1
    await until(gateway.runtime.components.prediction_cache.local_bytes)  # it is packed beside the loop
    again = await gateway.ask(body)
    assert again.answer_headers["x-cache"] == "hit"
    assert again.json["choices"][0]["message"]["content"] == "Gr" * 2001 + "üße 👋"


def _openai(gateway: Gateway) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://127.0.0.1/v1", api_key=gateway.world.acme.secret, max_retries=0, http_client=_http(gateway)
    )


def _http(gateway: Gateway) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=gateway.app))


def _is_only_usage(event: bytes) -> bool:
    """Return whether an event is a chunk that clients without ``include_usage`` do not get."""
    return b'"choices":[]' in event.replace(b" ", b"") and b'"usage"' in event


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    return [_without_null(inner) for inner in value] if isinstance(value, list) else value


def _bare(value: Any) -> Any:
    """Return what a client received, without nulls, which mean the same as absent."""
    return [_without_null(inner) for inner in value] if isinstance(value, tuple) else _without_null(value)

"""Whole answers and streams have the same shapes and counts from both engines."""

from typing import Any

import orjson
import pytest

from gateway.protocols.stream_token_counts import TokenCounts
from tests.engines.replica import Client

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPTED: dict[str, Any] = {
    "model": "tiny",
    "prompt": "Hello there",
    "max_tokens": 6,
    "temperature": 0,
    "ignore_eos": True,
}
PROMPT_TOKENS = 11

USAGE = ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"]
STREAM_USAGE = USAGE[:4]
CHUNK = ["id", "object", "created", "model", "choices"]


async def test_a_chat_answer_has_vllms_fields(client: Client) -> None:
    body = (await client.post(CHAT, ASKED)).body
    assert list(body) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("prompt_logprobs", "prompt_token_ids", "prompt_text"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    [choice] = body["choices"]
    assert list(choice) == [
        *("index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"),
    ]
    assert choice["finish_reason"] == "length"
    message = choice["message"]
    assert list(message) == ["role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"]
    assert message["role"] == "assistant"
    assert message["content"]


async def test_usage_adds_up(client: Client) -> None:
    usage = (await client.post(CHAT, ASKED)).body["usage"]
    assert list(usage) == USAGE
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (PROMPT_TOKENS, 6, 17)
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }


async def test_a_completion_answer_has_vllms_fields(client: Client) -> None:
    body = (await client.post(TEXT, PROMPTED)).body
    assert list(body) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert body["object"] == "text_completion"
    [choice] = body["choices"]
    assert list(choice) == [
        *("index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids"),
        *("prompt_logprobs", "prompt_token_ids", "routed_experts"),
    ]
    assert body["usage"]["prompt_tokens_details"]["created_cache_tokens"] is None


async def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason(client: Client) -> None:
    opening, *middle, last = await client.stream(CHAT, ASKED)
    assert list(opening) == [*CHUNK, "prompt_token_ids", "prompt_text"]
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert opening["choices"] == [role]
    for chunk in middle:
        assert list(chunk) == CHUNK
        [choice] = chunk["choices"]
        assert list(choice) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
        assert list(choice["delta"]) == ["content"]
        assert choice["finish_reason"] is None
    assert list(last) == [*CHUNK, "system_fingerprint"]
    [choice] = last["choices"]
    assert list(choice) == ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids"]
    assert choice["finish_reason"] == "length"
    assert {chunk["id"] for chunk in (opening, *middle, last)} == {opening["id"]}
    assert {chunk["object"] for chunk in (opening, *middle, last)} == {"chat.completion.chunk"}


async def test_a_stream_that_asks_for_usage_ends_with_it(client: Client) -> None:
    *_, finish, usage = await client.stream(CHAT, ASKED | {"stream_options": {"include_usage": True}})
    assert list(finish) == CHUNK
    assert list(usage) == [*CHUNK, "usage", "system_fingerprint"]
    assert usage["choices"] == []
    assert list(usage["usage"]) == STREAM_USAGE
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (PROMPT_TOKENS, 6)
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": 0}


async def test_continuous_usage_counts_with_the_chunks(client: Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _usage = await client.stream(CHAT, ASKED | {"stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 6)


@pytest.mark.parametrize(("path", "asked"), [(CHAT, ASKED), (TEXT, PROMPTED)])
async def test_the_gateway_counts_each_event_and_takes_nothing_but_the_usage_out(
    client: Client, path: str, asked: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reader, tokens = TokenCounts(shown=False), []
    for chunk in await client.stream(path, asked | {"n": 2, "temperature": 1, "stream_options": options}):
        told, counted = reader.take(b"data: " + orjson.dumps(chunk))
        if chunk["choices"]:
            del chunk["usage"]
            tokens.append(counted)
        assert told == b"data: " + orjson.dumps(chunk)
    assert sum(found for found in tokens if found is not None) == 12
    assert None not in tokens


async def test_a_completion_stream_has_vllms_fields(client: Client) -> None:
    *middle, last, usage = await client.stream(TEXT, PROMPTED | {"stream_options": {"include_usage": True}})
    for chunk in (*middle, last):
        assert list(chunk) == CHUNK
        [choice] = chunk["choices"]
        fields = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"]
        assert list(choice) == fields
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_says_what_a_whole_answer_says(client: Client) -> None:
    whole = (await client.post(CHAT, ASKED)).body["choices"][0]["message"]["content"]
    chunks = await client.stream(CHAT, ASKED)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole
    whole = (await client.post(TEXT, PROMPTED)).body["choices"][0]["text"]
    chunks = await client.stream(TEXT, PROMPTED)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


async def test_an_answer_ends_by_itself(client: Client) -> None:
    choice = (await client.post(CHAT, ASKED | {"ignore_eos": False, "max_tokens": 2000})).body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_ends_the_answer(client: Client, include: bool) -> None:
    body = ASKED | {"max_tokens": 200, "stop": ["e", "zzz"], "include_stop_str_in_output": include}
    choice = (await client.post(CHAT, body)).body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "e")
    said = choice["message"]["content"]
    assert said.count("e") == int(include)
    chunks = await client.stream(CHAT, body)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == said
    assert chunks[-1]["choices"][0]["stop_reason"] == "e"


async def test_several_choices_come_with_their_index(client: Client) -> None:
    body = ASKED | {"n": 2, "temperature": 1, "max_tokens": 3}
    whole = (await client.post(CHAT, body)).body
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (PROMPT_TOKENS, 6)
    chunks = await client.stream(CHAT, body)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [0, 1]
    ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] is not None]
    assert sorted(ended) == [0, 1]


async def test_several_prompts_are_answered_in_order(client: Client) -> None:
    body = (await client.post(TEXT, PROMPTED | {"prompt": ["Hello", "World"], "max_tokens": 2})).body
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 4


async def test_the_request_id_names_the_answer(client: Client) -> None:
    reply = await client.post(CHAT, ASKED, headers={"X-Request-Id": "abc-1"})
    assert reply.headers["X-Request-Id"] == "abc-1"
    assert reply.body["id"] == "chatcmpl-abc-1"
    reply = await client.post(TEXT, PROMPTED, headers={"X-Request-Id": "abc-2"})
    assert reply.body["id"] == "cmpl-abc-2"
    assert (await client.post(CHAT, ASKED)).headers["X-Request-Id"]


async def test_a_seed_repeats_an_answer(client: Client) -> None:
    body = ASKED | {"temperature": 1, "seed": 7, "max_tokens": 20}
    first, second = [(await client.post(CHAT, body)).body["choices"] for _ in range(2)]
    assert first == second


async def test_token_ids_are_told_when_asked_for(client: Client) -> None:
    body = (await client.post(CHAT, ASKED | {"return_token_ids": True})).body
    assert len(body["prompt_token_ids"]) == PROMPT_TOKENS
    assert len(body["choices"][0]["token_ids"]) == 6
    chunks = await client.stream(CHAT, ASKED | {"return_token_ids": True})
    assert chunks[0]["prompt_token_ids"] == body["prompt_token_ids"]
    streamed = [number for chunk in chunks[1:] for number in chunk["choices"][0]["token_ids"]]
    assert streamed == body["choices"][0]["token_ids"]


async def test_log_probabilities_come_one_per_token(client: Client) -> None:
    choice = (await client.post(CHAT, ASKED | {"logprobs": True, "top_logprobs": 1})).body["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 6
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert list(entries[0]) == ["token", "logprob", "bytes", "top_logprobs"]
    assert len(entries[0]["top_logprobs"]) >= 1

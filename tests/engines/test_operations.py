"""Health, models, tokens, load, pausing and abandoned requests."""

import asyncio
from typing import Any

import pytest

from tests.engines.replica import BLOCK_TOKENS, BLOCKS, CONTEXT_TOKENS, Client, chunks

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
#: Seconds of work: several thousand tokens.
LONG: dict[str, Any] = {
    "model": "tiny",
    "messages": HELLO,
    "max_tokens": 6000,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}
METRICS = [
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"),
    *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_by_source_total"),
    *("vllm:generation_tokens_total", "vllm:request_success_total", "vllm:engine_sleep_state"),
    *("vllm:time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_sum"),
    *("vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_count"),
    *("vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum"),
    *("vllm:cache_config_info", "process_start_time_seconds", "hearth_engine_max_requests"),
    "hearth_engine_context_tokens",
]


async def test_the_engine_names_its_release(client: Client) -> None:
    assert (await client.get("/version")).body["version"].startswith("0.32.0")


async def test_the_model_is_listed_with_its_context(client: Client) -> None:
    body = (await client.get("/v1/models")).body
    assert body["object"] == "list"
    [model] = body["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "vllm")
    assert model["max_model_len"] == CONTEXT_TOKENS
    assert list(model) == [
        *("id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"),
    ]


async def test_the_metrics_state_the_context(client: Client) -> None:
    assert await client.metric("hearth_engine_context_tokens") == CONTEXT_TOKENS


@pytest.mark.parametrize("name", METRICS)
async def test_a_metric_is_there(client: Client, name: str) -> None:
    await client.post(CHAT, LONG | {"max_tokens": 2, "stream": False})
    assert await client.metric(name) >= 0


async def test_the_cache_tells_its_size(client: Client) -> None:
    page = (await client.get("/metrics")).raw.decode()
    [line] = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")]
    for label in (
        f'block_size="{BLOCK_TOKENS}"',
        f'num_gpu_blocks="{BLOCKS}"',
        'prefix_caching_hash_algo="sha256_cbor"',
    ):
        assert label in line


async def test_tokenizing_counts_what_inference_counts(client: Client) -> None:
    usage = (await client.post(CHAT, LONG | {"max_tokens": 1, "stream": False})).body["usage"]
    tokenized = (await client.post("/tokenize", {"model": "tiny", "messages": HELLO})).body
    rendered = (await client.post(f"{CHAT}/render", {"model": "tiny", "messages": HELLO})).body
    assert tokenized["count"] == len(tokenized["tokens"]) == usage["prompt_tokens"] == 11
    assert tokenized["max_model_len"] == CONTEXT_TOKENS
    assert rendered["token_ids"] == tokenized["tokens"]


async def test_a_prompt_goes_to_ids_and_back(client: Client) -> None:
    tokenized = (await client.post("/tokenize", {"prompt": "Hello there", "return_token_strs": True})).body
    assert list(tokenized) == ["count", "max_model_len", "tokens", "token_strs"]
    assert tokenized["token_strs"] == ["Hello", "Ġthere"]
    back = await client.post("/detokenize", {"tokens": tokenized["tokens"]})
    assert back.body == {"prompt": "Hello there"}


async def test_parts_of_a_message_are_joined_by_line_ends(client: Client) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    rendered = [
        (await client.post(f"{CHAT}/render", {"messages": [{"role": "user", "content": content}]})).body["token_ids"]
        for content in (parts, "Hello\nthere")
    ]
    assert rendered[0] == rendered[1]


async def test_a_responses_input_is_rendered_as_it_is_counted(client: Client) -> None:
    asked = {"model": "tiny", "input": "Hello there", "instructions": "Be brief.", "max_output_tokens": 1}
    rendered = (await client.post("/v1/responses/render", asked)).body
    answered = (await client.post("/v1/responses", asked)).body
    assert len(rendered["token_ids"]) == answered["usage"]["input_tokens"]


async def test_rendering_keeps_what_the_engine_needs(client: Client) -> None:
    body = {"model": "tiny", "messages": HELLO, "cache_salt": "s", "max_tokens": 5, "temperature": 0}
    rendered = (await client.post(f"{CHAT}/render", body)).body
    assert (rendered["cache_salt"], rendered["priority"], rendered["stream"]) == ("s", 0, False)
    assert (rendered["sampling_params"]["max_tokens"], rendered["sampling_params"]["temperature"]) == (5, 0)
    prompts = (await client.post("/v1/completions/render", {"prompt": ["a", "b"]})).body
    assert [len(entry["token_ids"]) for entry in prompts] == [1, 1]


async def load_becomes(client: Client, requests: int) -> None:
    """Wait until the engine counts this many open requests. Raises TimeoutError."""
    async with asyncio.timeout(30):
        while True:
            if (await client.get("/load")).body == {"server_load": requests}:
                return
            await asyncio.sleep(0.05)


async def test_load_counts_open_requests(client: Client) -> None:
    await load_becomes(client, 0)
    async with client.opened(CHAT, LONG) as response:
        await response.content.readuntil(b"\n\n")
        await load_becomes(client, 1)
        await client.settles("vllm:num_requests_running", 1)
        assert await client.metric("vllm:kv_cache_usage_perc") > 0
    await client.settles("vllm:num_requests_running", 0)


async def test_an_abandoned_stream_stops_working(client: Client) -> None:
    before = await client.metric("vllm:generation_tokens_total")
    async with client.opened(CHAT, LONG) as response:
        for _ in range(5):
            await response.content.readuntil(b"\n\n")
    await client.settles("vllm:num_requests_running", 0)
    generated = await client.metric("vllm:generation_tokens_total") - before
    assert 4 <= generated < LONG["max_tokens"]
    assert (await client.get("/load")).body == {"server_load": 0}


async def test_an_abandoned_whole_answer_stops_working(client: Client) -> None:
    before = await client.metric("vllm:generation_tokens_total")
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.post(CHAT, LONG | {"stream": False}))
        await client.settles("vllm:num_requests_running", 1)
        asking.cancel()
    assert asking.cancelled()
    await client.settles("vllm:num_requests_running", 0)
    assert await client.metric("vllm:generation_tokens_total") - before < LONG["max_tokens"]


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_a_paused_engine_queues_in_silence(client: Client, mode: str) -> None:
    assert (await client.post(f"/pause?mode={mode}")).body == {"status": "paused"}
    assert (await client.get("/is_paused")).body == {"is_paused": True}
    assert (await client.get("/is_sleeping")).body == {"is_sleeping": True}
    assert (await client.get("/health")).status == 200
    asking = asyncio.create_task(client.post(CHAT, LONG | {"max_tokens": 2, "stream": False}))
    await asyncio.sleep(0.5)
    assert not asking.done()
    assert (await client.get("/load")).body == {"server_load": 1}
    assert (await client.post("/resume")).body == {"status": "resumed"}
    assert (await asking).status == 200
    assert (await client.get("/is_paused")).body == {"is_paused": False}


async def test_pausing_by_abort_ends_streams_with_that_reason(client: Client) -> None:
    async with client.opened(CHAT, LONG | {"stream_options": {"include_usage": True}}) as response:
        for _ in range(3):
            await response.content.readuntil(b"\n\n")
        await client.post("/pause?mode=abort")
        *_, last, usage = chunks(await response.read())
    await client.post("/resume")
    assert last["choices"][0]["finish_reason"] == "abort"
    assert 0 < usage["usage"]["completion_tokens"] < LONG["max_tokens"]


async def test_pausing_by_wait_lets_answers_end(client: Client) -> None:
    async with client.opened(CHAT, LONG | {"max_tokens": 1000}) as response:
        await response.content.readuntil(b"\n\n")
        rest, _ = await asyncio.gather(response.read(), client.post("/pause?mode=wait"))
    await client.post("/resume")
    assert chunks(rest)[-1]["choices"][0]["finish_reason"] == "length"


async def test_an_unknown_way_to_pause_is_refused(client: Client) -> None:
    reply = await client.post("/pause?mode=bad")
    assert (reply.status, reply.body["error"]["param"]) == (400, "query.mode")
    assert (await client.get("/is_paused")).body == {"is_paused": False}

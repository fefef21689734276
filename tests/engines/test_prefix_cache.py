"""The prefix cache: what is matched, under which salt, and which events are published."""

from collections.abc import Callable
from typing import Any

from tests.engines.events import listening
from tests.engines.reference_hashes import chain
from tests.engines.replica import BLOCK_TOKENS, TOPIC, Client, Replica

TEXT = "/v1/completions"


async def complete(client: Client, prompt: list[int], salt: str | None, **changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "cache_salt": salt, "max_tokens": 1, "temperature": 0}
    reply = await client.post(TEXT, body | {"ignore_eos": True, "return_token_ids": True} | changes)
    assert reply.status == 200, reply.raw
    answer: dict[str, Any] = reply.body
    return answer


def stores(key: bytes) -> Callable[[dict[str, Any]], bool]:
    """Whether an event says that the block with this hash was stored."""
    return lambda event: event["type"] == "BlockStored" and key in event["block_hashes"]


async def cached(client: Client, prompt: list[int], salt: str | None) -> int:
    details = (await complete(client, prompt, salt))["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])


async def test_a_prompt_is_found_again_under_its_salt_only(client: Client, prompt: list[int], salt: str) -> None:
    assert await cached(client, prompt, f"{salt}-a") == 0
    assert await cached(client, prompt, f"{salt}-a") == 96
    assert await cached(client, prompt, f"{salt}-b") == 0
    assert await cached(client, [299, *prompt[1:]], f"{salt}-a") == 0


async def test_the_last_prompt_token_is_always_computed(client: Client, prompt: list[int], salt: str) -> None:
    assert await cached(client, prompt[:64], salt) == 0
    assert await cached(client, prompt[:64], salt) == 32
    assert await cached(client, prompt[:65], salt) == 64


async def test_an_answer_is_found_in_the_next_turn(client: Client, prompt: list[int], salt: str) -> None:
    answer = await complete(client, prompt, salt, max_tokens=40)
    said = answer["choices"][0]["token_ids"]
    # The last generated token was never computed: 139 of 140 tokens are, four blocks of them full.
    assert await cached(client, [*prompt, *said, 300], salt) == 128


async def test_the_counters_count_tokens(client: Client, prompt: list[int], salt: str) -> None:
    names = [
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    ]
    before = {name: await client.metric(name) for name in names}
    for _ in range(2):
        await complete(client, prompt, salt, max_tokens=5)
    await client.settles("vllm:request_success_total", before["vllm:request_success_total"] + 2)
    grown = [await client.metric(name) - before[name] for name in names]
    assert grown == [200, 96, 200, 10, 2]


async def test_created_tokens_are_what_a_chat_added_to_the_cache(client: Client, salt: str) -> None:
    messages = [{"role": "user", "content": "word " * 60}]
    body = {"model": "tiny", "messages": messages, "cache_salt": salt, "max_tokens": 1, "temperature": 0}
    first, second = [(await client.post("/v1/chat/completions", body)).body["usage"] for _ in range(2)]
    full = first["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS
    assert full > 0
    assert first["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "created_cache_tokens": full,
        "multimodal_tokens": None,
    }
    assert second["prompt_tokens_details"] == {
        "cached_tokens": full,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }


async def test_stored_blocks_are_published_with_the_engines_hashes(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    expected = list(chain(prompt, BLOCK_TOKENS, salt=salt))
    async with listening(replica) as listener:
        await complete(client, prompt, salt)
        heard = await listener.through(stores(expected[0]))
    [event] = [event for event in heard[-1].events if event["type"] == "BlockStored"]
    assert event == {
        "type": "BlockStored",
        "block_hashes": expected,
        "parent_block_hash": None,
        "token_ids": prompt[:96],
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [[salt], None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


async def test_only_new_blocks_are_published(replica: Replica, client: Client, prompt: list[int], salt: str) -> None:
    async with listening(replica) as listener:  # its event may come later than its answer
        await complete(client, prompt[:40], salt)
        await listener.through(stores(next(chain(prompt, BLOCK_TOKENS, salt=salt))))
    async with listening(replica) as listener:
        answer = await complete(client, prompt, salt, max_tokens=30)
        prefilled, generated = await listener.until("BlockStored", 3)
    tokens = [*prompt, *answer["choices"][0]["token_ids"]]
    hashes = list(chain(tokens, BLOCK_TOKENS, salt=salt))
    assert (prefilled["parent_block_hash"], prefilled["block_hashes"]) == (hashes[0], hashes[1:3])
    assert prefilled["extra_keys"] == [None, None]
    assert (generated["parent_block_hash"], generated["block_hashes"]) == (hashes[2], hashes[3:4])
    assert generated["token_ids"] == tokens[96:128]


async def test_evicted_blocks_are_published_and_no_longer_found(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    """Three prompts of 125 blocks do not fit into 299: the oldest request's tail goes first."""
    await complete(client, prompt, salt)
    victims = list(chain(prompt, BLOCK_TOKENS, salt=salt))
    removed: list[bytes] = []
    async with listening(replica) as listener:
        for number in range(3):
            await complete(client, [300 + number] * 4000, salt)
        while victims[0] not in removed:
            removed += [key for event in await listener.until("BlockRemoved") for key in event["block_hashes"]]
    assert [key for key in removed if key in victims] == victims[::-1]
    assert await cached(client, prompt, salt) == 0


async def test_missed_events_are_replayed(replica: Replica, client: Client, prompt: list[int], salt: str) -> None:
    async with listening(replica) as listener:
        heard = []
        for tokens in (prompt, prompt[::-1]):
            await complete(client, tokens, salt)
            heard += await listener.through(stores(next(chain(tokens, BLOCK_TOKENS, salt=salt))))
        assert {batch.topic for batch in heard} == {TOPIC}
        assert await listener.replay(heard[0].number) == heard
        assert await listener.replay(heard[-1].number + 1) == []


async def test_clearing_the_cache_is_published_with_the_next_step(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    await complete(client, prompt, salt)
    await client.settles("vllm:num_requests_running", 0)
    async with listening(replica) as listener:
        assert (await client.post("/reset_prefix_cache")).body == {"success": True}
        assert await cached(client, prompt, salt) == 0
        heard = await listener.through(lambda event: event["type"] == "AllBlocksCleared")
    assert [event["type"] for event in heard[-1].events] == ["AllBlocksCleared", "BlockStored"]

"""Blocks in host memory: what is kept there, what comes back, and how long that takes."""

import asyncio

import pytest

from tests.engines.test_scheduler import BLOCK, keys, stepped
from tests.engines.test_simulated import simulated
from workers.simulated.engine.block_pool import BlockPool
from workers.simulated.engine.host_tier import HostTier
from workers.simulated.engine.scheduler import Scheduled, Scheduler
from workers.simulated.settings import KV_BYTES_PER_TOKEN, read

PATH = "/v1/completions"


def with_host(blocks: int, host: int) -> Scheduler[Scheduled]:
    """Return a scheduler over ``blocks`` usable blocks, and ``host`` in host memory."""
    return Scheduler(
        BlockPool(1 + blocks), block_size=BLOCK, max_sequences=4, max_step_tokens=10_000, host=HostTier(host)
    )


def prompt(names: str, output_tokens: int = 1) -> Scheduled:
    """Return a sequence with a block for each letter, and one more token."""
    return Scheduled(len(names) * BLOCK + 1, output_tokens, keys(names))


def served(steps: Scheduler[Scheduled], names: str) -> Scheduled:
    """Compute a prompt and its answer of one token, after what must be reloaded."""
    sequence = prompt(names)
    steps.add(sequence)
    while not sequence.emitted:
        step = steps.next_step()
        for begun in steps.take_reloads():
            assert steps.reloaded(begun)
        if step is not None:
            steps.complete(step)
    steps.remove(sequence)
    return sequence


def test_what_was_used_longest_ago_is_overwritten_the_last_block_first() -> None:
    host = HostTier(4)
    host.use(keys("abc"))
    host.use(keys("xy"))
    assert (host.match(keys("abc")), host.match(keys("xy"))) == (2, 2)
    host.use(keys("ab"))
    host.use(keys("z"))
    assert (host.match(keys("ab")), host.match(keys("xy")), host.match(keys("z"))) == (2, 1, 1)
    assert host.stored == 6
    host.clear()
    assert host.match(keys("ab")) == 0


def test_evicted_blocks_come_back_while_others_are_computed() -> None:
    steps = with_host(10, 100)
    assert [served(steps, names).reloaded_tokens for names in ("abcdef", "uvwxyz", "ghijkl")] == [0, 0, 0]
    again, other = prompt("abcdef"), prompt("m", output_tokens=9)
    steps.add(again)
    steps.add(other)
    step = stepped(steps)
    assert (step.admitted, step.prompt_tokens) == ([other], BLOCK + 1)
    assert steps.take_reloads() == [again]
    assert steps.take_reloads() == []
    assert (again.cached_tokens, again.reloaded_tokens) == (6 * BLOCK, 6 * BLOCK)
    assert steps.started == [other, again]
    assert steps.reloaded(again)
    step = stepped(steps)
    assert (step.admitted, step.prompt_tokens, step.decoding) == ([again], 1, 1)
    assert again.emitted == 1


def test_only_what_the_cache_has_not_comes_from_host_memory() -> None:
    steps = with_host(9, 100)
    served(steps, "abcdef")
    served(steps, "uvwxy")  # takes three unused blocks, and those of f, e, and d
    again = served(steps, "abcdef")
    assert again.cached_tokens == 6 * BLOCK
    assert 0 < again.reloaded_tokens < 6 * BLOCK


def test_a_sequence_that_is_removed_while_its_blocks_come_releases_them() -> None:
    steps = with_host(8, 100)
    served(steps, "abcdef")
    served(steps, "uvwxyz")
    again = prompt("abcdef")
    steps.add(again)
    assert steps.next_step() is None
    steps.remove(again)
    assert not steps.reloaded(again)
    assert steps.pool.free == 8
    assert steps.started == []


def test_answers_are_not_copied_to_host_memory() -> None:
    steps = with_host(8, 100)
    sequence = Scheduled(2 * BLOCK + 1, 3 * BLOCK, keys("abcd"))
    steps.add(sequence)
    while sequence.emitted < sequence.output_tokens:
        stepped(steps)
    steps.remove(sequence)
    assert steps.host is not None
    assert steps.host.match(keys("abcd")) == 2


def test_host_memory_is_given_in_gib_as_to_vllm() -> None:
    settings = read(["--kv-offloading-size", "2", "--kv-offloading-backend", "native", "--block-size", "16"], {})
    assert settings.host_blocks == 2 * 2**30 // (16 * KV_BYTES_PER_TOKEN)
    assert settings.reload_seconds_per_token == KV_BYTES_PER_TOKEN / 25e9
    assert read([], {}).host_blocks == 0


async def test_an_engine_reloads_what_its_cache_evicted_and_counts_it_as_vllm_does() -> None:
    host = ("--kv-offloading-size", "2", "--reload-bytes-per-second", "25e9")
    async with simulated(*host, "--num-gpu-blocks-override", "300") as client:
        asked = {"model": "tiny", "max_tokens": 1, "temperature": 0}
        prompts = [[300 + number] * 4001 for number in range(4)]

        async def cached(number: int) -> int:
            reply = await client.post(PATH, asked | {"prompt": prompts[number]})
            assert reply.status == 200
            return int(reply.body["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(number) for number in range(4)] == [0] * 4
        assert await cached(0) == 4000
        page = (await client.get("/metrics")).raw.decode()
        labels = 'engine="0",model_name="tiny"'
        assert f'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer",{labels}}} 4000.0' in page
        assert f'vllm:prompt_tokens_cached_by_source_total{{source="host",{labels}}} 4000.0' in page
        assert await client.metric("vllm:external_prefix_cache_hits_total") == 4000
        assert await client.metric("vllm:kv_offload_load_time_total") == pytest.approx(4000 * KV_BYTES_PER_TOKEN / 25e9)
        assert await client.metric("vllm:prefix_cache_hits_total") == 0
        assert await client.metric("vllm:kv_offload_load_bytes_total") == 4000 * KV_BYTES_PER_TOKEN
        assert await client.metric("vllm:kv_offload_store_bytes_total") == 16_000 * KV_BYTES_PER_TOKEN
        assert await client.metric("hearth_engine_host_cache_tokens") == 2**31 // KV_BYTES_PER_TOKEN
        assert (await client.post("/reset_prefix_cache")).body == {"success": True}
        assert await cached(0) == 4000
        assert (await client.post("/reset_prefix_cache?reset_external=true")).body == {"success": True}
        assert await cached(0) == 0


async def test_an_engine_without_host_memory_says_nothing_of_it() -> None:
    async with simulated() as client:
        page = (await client.get("/metrics")).raw.decode()
    assert "hearth_engine_host_cache_tokens" not in page
    assert 'kv_offloading_size="None"' in page


async def test_a_client_that_leaves_while_its_prompt_is_reloaded_leaves_nothing_behind() -> None:
    host = ("--kv-offloading-size", "2", "--reload-bytes-per-second", "13e7")
    async with simulated(*host, "--num-gpu-blocks-override", "300") as client:
        asked = {"model": "tiny", "max_tokens": 1, "temperature": 0}
        for number in range(4):
            await client.post(PATH, asked | {"prompt": [300 + number] * 4001})
        leaving = asyncio.create_task(client.post(PATH, asked | {"prompt": [300] * 4001}))
        await client.settles("vllm:num_requests_waiting", 1)
        leaving.cancel()
        await client.settles("vllm:num_requests_waiting", 0)
        await client.settles("vllm:kv_cache_usage_perc", 0)

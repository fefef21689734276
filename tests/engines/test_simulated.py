"""What only the simulated engine has: faults on demand, speeds, its own tokenizer, a log of requests."""

import asyncio
import contextlib
import itertools
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.events import listening
from tests.engines.replica import Client, running, spec_for
from tests.wrong_values import BODIES, VALUES, places, replaced
from workers.engines.choice import driver_for
from workers.engines.driver import TINY_MODEL
from workers.simulated.engine.text_generator import Sampling, TextGenerator
from workers.simulated.engine.tokenizer import FileTokenizer, PackedTokenizer
from workers.simulated.faults import BadFault, Faults
from workers.simulated.settings import read

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello there"}],
    "max_tokens": 20,
    "temperature": 0,
    "ignore_eos": True,
}


@contextlib.asynccontextmanager
async def simulated(*arguments: str, **changes: Any) -> AsyncIterator[Client]:
    with running("simulated", *arguments, **changes) as replica:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            yield Client(replica, session)


async def test_it_serves_without_a_model_folder() -> None:
    async with simulated(model_path="any/name") as client:
        reply = await client.post(CHAT, ASKED)
        assert reply.status == 200
        tokenized = (await client.post("/tokenize", {"prompt": "Grüße, world"})).body["tokens"]
        assert (await client.post("/detokenize", {"tokens": tokenized})).body == {"prompt": "Grüße, world"}


async def test_an_answer_depends_on_the_prompt_and_not_on_the_salt() -> None:
    async with simulated() as client:
        said = [
            (await client.post(CHAT, ASKED | {"cache_salt": salt})).body["choices"][0]["message"]["content"]
            for salt in ("a", "b")
        ]
        other = await client.post(CHAT, ASKED | {"messages": [{"role": "user", "content": "Other"}]})
    assert said[0] == said[1]
    assert said[0] != other.body["choices"][0]["message"]["content"]


async def test_faults_are_set_and_taken_back_while_it_runs() -> None:
    async with simulated("--fault", "error-rate=1", "--fault", "error-status=503") as client:
        reply = await client.post(CHAT, ASKED)
        error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 503}
        assert (reply.status, reply.body) == (503, {"error": error})
        assert (await client.post("/_sim/faults", {"error-rate": None, "unhealthy": 1})).body["unhealthy"] is True
        assert (await client.post(CHAT, ASKED)).status == 200
        assert (await client.get("/health")).status == 503
        assert (await client.post("/_sim/faults", {"nonsense": 1})).status == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_field_of_a_wrong_type_is_refused_as_by_vllm(path: str) -> None:
    async with simulated() as client:
        for place, value in itertools.product(places(BODIES[path]), VALUES):
            sent = replaced({**BODIES[path], "model": "tiny"}, {place: value})
            reply = await client.post(path, sent)
            assert reply.status in {200, 400, 404}, (sent, reply)


async def test_it_dies_in_mid_stream_when_told_to() -> None:
    async with simulated("--fault", "die-after-tokens=5") as client:
        received = b""
        with pytest.raises(aiohttp.ClientPayloadError):
            async with client.opened(CHAT, ASKED | {"stream": True}) as response:
                async for part in response.content.iter_any():
                    received += part
        assert received.count(b'"content":') == 6
        assert b"[DONE]" not in received
        assert await asyncio.to_thread(client.replica.process.wait, 5) == 137


async def test_it_cuts_a_connection_and_lives_on() -> None:
    async with simulated("--fault", "cut-after-tokens=3") as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.stream(CHAT, ASKED)
        await client.post("/_sim/faults", {"cut-after-tokens": None})
        assert len(await client.stream(CHAT, ASKED)) == 21
        await client.settles("vllm:num_requests_running", 0)
        assert (await client.get("/_sim/requests")).body["ended"] == {"cut": 1, "finished": 1}


async def test_it_falls_silent_and_frees_all_when_the_client_leaves() -> None:
    async with simulated("--fault", "hang-after-tokens=2") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), client.opened(CHAT, ASKED | {"stream": True}) as response:
                await response.read()
        await client.settles("vllm:num_requests_running", 0)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
async def test_a_stream_sends_nothing_before_its_first_token(path: str) -> None:
    """A gateway measures the time to the first token from the first bytes; vLLM has none until then."""
    async with simulated("--fault", "hang-after-tokens=0") as client:
        opened = client.opened(path, ASKED | {"stream": True})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), opened as response:
                await response.content.readany()
        await client.settles("vllm:num_requests_running", 0)


async def test_events_can_be_replayed_from_any_batch() -> None:
    async with simulated() as client, listening(client.replica) as listener:
        for number in range(3):
            await client.post("/v1/completions", {"prompt": [300 + number] * 40, "max_tokens": 1})
        assert [(await listener.batch()).number for _ in range(3)] == [0, 1, 2]
        assert [batch.number for batch in await listener.replay(1)] == [1, 2]


async def test_the_ledger_shows_what_the_engine_was_sent() -> None:
    async with simulated() as client:
        await client.post(CHAT, ASKED | {"cache_salt": "s", "user": "u", "session_id": "x", "priority": 2})
        [entry] = (await client.get("/_sim/requests")).body["recent"]
    assert entry.pop("id").startswith("chatcmpl-")
    assert entry == {
        "kind": "chat",
        "stream": False,
        "cache_salt": "s",
        "session_id": "x",
        "priority": 2,
        "user": "u",
        "prompt_tokens": 11,
        "ended": "finished",
        "cached_tokens": 0,
        "completion_tokens": 20,
    }


async def test_no_more_sequences_run_than_allowed() -> None:
    async with simulated("--max-num-seqs", "2", "--decode-tokens-per-second", "50") as client:
        asking = [asyncio.create_task(client.post(CHAT, ASKED)) for _ in range(3)]
        await client.settles("vllm:num_requests_waiting", 1)
        assert await client.metric("vllm:num_requests_running") == 2
        assert [(await task).status for task in asking] == [200, 200, 200]


async def test_a_request_waits_until_its_blocks_are_free() -> None:
    async with simulated("--decode-tokens-per-second", "50") as client:
        prompts = [[300 + number] * 5000 for number in range(2)]
        body = {"max_tokens": 20, "ignore_eos": True, "temperature": 0}
        asking = [asyncio.create_task(client.post("/v1/completions", body | {"prompt": prompt})) for prompt in prompts]
        await client.settles("vllm:num_requests_waiting", 1)
        assert [(await task).status for task in asking] == [200, 200]


async def test_sigterm_lets_a_running_stream_end() -> None:
    async with simulated("--decode-tokens-per-second", "40", shutdown_timeout_seconds=20) as client:
        streaming = asyncio.create_task(client.stream(CHAT, ASKED | {"max_tokens": 100}))
        await client.settles("vllm:num_requests_running", 1)
        client.replica.process.send_signal(signal.SIGTERM)
        assert (await streaming)[-1]["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(client.replica.process.wait, 10) == 0


def test_it_refuses_to_start_when_told_to(tmp_path: Any) -> None:
    command = driver_for("simulated").command(spec_for(tmp_path))
    started = subprocess.run(
        [*command.argv, "--fault", "fail-start=1"],
        env=command.environment({}),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (started.returncode, b"fail-start" in started.stderr) == (1, True)


def test_a_cache_too_small_for_the_context_is_refused(tmp_path: Any) -> None:
    command = driver_for("simulated").command(spec_for(tmp_path, engine_args=("--num-gpu-blocks-override", "200")))
    started = subprocess.run(command.argv, env=command.environment({}), capture_output=True, timeout=30, check=False)
    assert started.returncode == 1
    assert b"200 blocks cannot hold one request" in started.stderr


async def test_speeds_are_kept() -> None:
    """A hundred tokens at 200 a second take half a second, and a prefill of 400 at 1000 another 0.4."""
    async with simulated("--decode-tokens-per-second", "200", "--prefill-tokens-per-second", "1000") as client:
        started = time.monotonic()
        await client.post("/v1/completions", {"prompt": [300] * 400, "max_tokens": 101, "ignore_eos": True})
        assert time.monotonic() - started >= 0.9


async def test_sequences_slow_each_other_down() -> None:
    """A step that decodes for two takes twice the 5 ms of one."""
    async with simulated("--sequence-seconds", "0.005") as client:
        body = {"prompt": [300] * 40, "max_tokens": 51, "ignore_eos": True}
        started = time.monotonic()
        await asyncio.gather(*(client.post("/v1/completions", body) for _ in range(2)))
        assert time.monotonic() - started >= 0.4


async def test_every_step_has_a_fixed_cost() -> None:
    """A prompt of 200 tokens takes four steps of at most 64."""
    async with simulated("--step-seconds", "0.1", "--max-num-batched-tokens", "64") as client:
        started = time.monotonic()
        await client.post("/v1/completions", {"prompt": [300] * 200, "max_tokens": 1})
        assert time.monotonic() - started >= 0.4


async def test_a_long_prompt_is_stored_chunk_by_chunk() -> None:
    async with simulated("--max-num-batched-tokens", "80") as client, listening(client.replica) as listener:
        await client.post("/v1/completions", {"prompt": list(range(300, 500)), "max_tokens": 1})
        stored = [event for _ in range(3) for event in (await listener.batch()).events]
    assert [len(event["block_hashes"]) for event in stored] == [2, 3, 1]
    parents = [None, *(event["block_hashes"][-1] for event in stored[:2])]
    assert [event["parent_block_hash"] for event in stored] == parents
    assert [token for event in stored for token in event["token_ids"]] == list(range(300, 492))


async def test_a_silent_client_does_not_cost_its_whole_answer() -> None:
    async with simulated("--fault", "hang-after-tokens=2") as client:
        async with client.opened(CHAT, ASKED | {"stream": True, "max_tokens": 2000}) as response:
            await response.content.readuntil(b"\n\n")
            await client.settles("vllm:generation_tokens_total", 3)  # the third is not sent
            assert await client.metric("vllm:num_requests_running") == 1
        await client.settles("vllm:num_requests_running", 0)


@pytest.mark.parametrize("name", ["--max-num-seqs", "--max-num-batched-tokens"])
def test_an_engine_that_could_compute_nothing_is_refused(name: str) -> None:
    with pytest.raises(SystemExit):
        read([name, "0"])


@pytest.mark.parametrize("spec", ["nonsense=1", "latency=soon", "latency"])
def test_a_fault_nobody_knows_is_refused(spec: str) -> None:
    with pytest.raises(BadFault):
        Faults.parse([spec])


@given(st.text(max_size=200))
def test_packed_tokens_go_back_to_their_text(text: str) -> None:
    tokenizer = PackedTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= number < tokenizer.size for number in ids)
    assert tokenizer.size <= 2**32  # those who follow KV events refuse larger ids


@given(
    prompt=st.lists(st.integers(0, 3000), min_size=1, max_size=20),
    max_tokens=st.integers(1, 120),
    stop=st.lists(st.sampled_from(["e", ". ", "the", "zzz"]), max_size=2).map(tuple),
    include=st.booleans(),
    ignore=st.booleans(),
)
def test_an_answer_keeps_its_limits(
    prompt: list[int], max_tokens: int, stop: tuple[str, ...], include: bool, ignore: bool
) -> None:
    tokenizer = FileTokenizer(TINY_MODEL / "tokenizer.json")
    generator = TextGenerator(tokenizer)
    sampling = Sampling(max_tokens=max_tokens, temperature=0, stop=stop, include_stop=include, ignore_end=ignore)
    answer = generator.generate(prompt, sampling)
    text = "".join(token.text for token in answer.tokens)
    assert 1 <= len(answer.tokens) <= max_tokens
    assert answer == generator.generate(prompt, sampling)
    if answer.stop_reason is None:
        assert not any(word in text for word in stop)
        ended = answer.tokens[-1].id == tokenizer.end_id
        assert answer.finish_reason == ("stop" if ended else "length")
        assert ended or len(answer.tokens) == max_tokens
    else:
        assert text.endswith(answer.stop_reason) if include else answer.stop_reason not in text

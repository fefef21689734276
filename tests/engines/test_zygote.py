"""A promoted engine is like any other engine: the same replies, hashes, key check and shutdown."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.events import listening
from tests.engines.reference_hashes import chain
from tests.engines.replica import API_KEY, BLOCK_TOKENS, Client, Replica
from tests.engines.zygotes import Waiting, waiting
from workers import processes
from workers.engines import environment, start_parts
from workers.processes import ProcessIdentity

SIMULATED_ARGUMENTS = ("--decode-tokens-per-second", "400")
BLOCKS = ("--num-gpu-blocks-override", "300")
#: Tokens of the answer that runs when the engine is stopped.
TOKENS = 120


@pytest.fixture(
    scope="module", params=["simulated", pytest.param("vllm", marks=pytest.mark.real_engine)], name="zygote"
)
def _zygote(request: pytest.FixtureRequest) -> Iterator[Waiting]:
    kind: str = request.param
    if kind == "vllm" and environment.default() is None:
        pytest.skip("the engine environment is not installed: python -m workers.engines.environment")
    extra = SIMULATED_ARGUMENTS if kind == "simulated" else ()
    # More than one thread for the engine, and still one for the zygote.
    with waiting(kind, engine_args=BLOCKS + extra, hash_seed="7", cpu_threads=2) as zygote:
        yield zygote


@pytest.fixture(scope="module", name="replica")
def _replica(zygote: Waiting) -> Replica:
    """Promote the zygote: the tests of this module use an engine that was a zygote."""
    status = zygote.status()
    assert (status.state, status.threads, status.reason) == ("warm", 1, ""), zygote.log()
    assert status.pid == zygote.process.pid
    assert "not warmed up" not in zygote.log()
    return zygote.promote()


async def complete(client: Client, prompt: list[int], salt: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "cache_salt": salt, "max_tokens": 1, "temperature": 0}
    reply = await client.post("/v1/completions", body | changes)
    assert reply.status == 200, reply.raw
    answer: dict[str, Any] = reply.body
    return answer


async def cached(client: Client, prompt: list[int], salt: str) -> int:
    details = (await complete(client, prompt, salt))["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])


async def test_it_chats_and_streams(client: Client) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
    said = (await client.post("/v1/chat/completions", body | {"ignore_eos": True})).body
    assert said["usage"]["completion_tokens"] == 8
    chunks = await client.stream("/v1/chat/completions", body | {"ignore_eos": True})
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == said["choices"][0]["message"]["content"]


async def test_salts_keep_prefixes_apart(client: Client, prompt: list[int], salt: str) -> None:
    assert await cached(client, prompt, f"{salt}-a") == 0
    assert await cached(client, prompt, f"{salt}-a") == 96
    assert await cached(client, prompt, f"{salt}-b") == 0


async def test_block_hashes_are_those_of_a_plain_start(
    replica: Replica, client: Client, prompt: list[int], salt: str
) -> None:
    async with listening(replica) as listener:
        await complete(client, prompt, salt)
        heard = await listener.through(lambda event: event.get("extra_keys") == [[salt], None, None])
    event = heard[-1].events[-1]
    assert event["block_hashes"] == list(chain(prompt, BLOCK_TOKENS, salt=salt, seed="7"))
    assert event["token_ids"] == prompt[:96]


async def test_the_key_is_asked_for_and_no_process_shows_it(replica: Replica, client: Client) -> None:
    assert (await client.get("/v1/models", key=None)).status == 401
    assert (await client.get("/v1/models", key="another")).status == 401
    assert (await client.get("/v1/models")).status == 200
    assert not [process for process in members(replica) if API_KEY in command_line(process)]


async def test_the_environment_of_the_promotion_counts(client: Client) -> None:
    """The zygote was started for an engine without the development routes."""
    assert (await client.get("/is_paused")).status == 200


def test_it_is_the_process_that_waited(zygote: Waiting, replica: Replica) -> None:
    assert zygote.leader.pid == replica.process.pid
    assert not zygote.socket_path.exists()
    assert leader_of(replica).start_ticks <= min(process.start_ticks for process in members(replica))


def test_its_log_is_the_replicas_own(replica: Replica) -> None:
    written = {Path(f"/proc/{replica.process.pid}/fd/{number}").readlink() for number in (1, 2)}
    assert written == {replica.spec.log_path}
    assert replica.spec.log_path.stat().st_mode & 0o777 == 0o600
    assert start_parts.parts(replica.spec.log_path.read_text(errors="replace")).load_seconds is not None
    assert replica.spec.log_path.stat().st_size > 0, "an engine writes how long it loaded"


async def test_sigterm_ends_an_engine_and_leaves_no_process(replica: Replica, client: Client) -> None:
    """The last test of the engine: nothing is left of it.

    The simulated engine lets an answer end first. vLLM does not always: its API server may lose the end of a stream,
    or wait for good for its engine core, which has gone already. The agent does not rely on it, since it signals an
    engine only when no request runs there.
    """
    leader = leader_of(replica)
    started = set(members(replica)) | set(descendants(replica.process.pid))
    assert set(descendants(replica.process.pid)) <= set(members(replica)), "a session holds what must be killed"
    body = {"model": "tiny", "prompt": [300], "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    async with client.opened("/v1/completions", body) as response:
        received = await response.content.readline()
        if replica.kind == "simulated":
            os.kill(leader.pid, signal.SIGTERM)
        received += await response.content.read()
    assert received.endswith(b"data: [DONE]\n\n"), replica.log()
    if replica.kind == "vllm":
        os.kill(leader.pid, signal.SIGTERM)
    wait_until_gone(leader, started)
    assert replica.process.wait(30) == 0, replica.log()


def leader_of(replica: Replica) -> ProcessIdentity:
    found = processes.identify(replica.process.pid)
    assert found is not None, replica.log()
    return found


def members(replica: Replica) -> list[ProcessIdentity]:
    return processes.session_members(leader_of(replica))


def command_line(process: ProcessIdentity) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")


def wait_until_gone(leader: ProcessIdentity, started: set[ProcessIdentity]) -> None:
    deadline = time.monotonic() + 60
    while left := [*filter(processes.is_running, started), *processes.session_members(leader)]:
        assert time.monotonic() < deadline, [command_line(process) for process in left]
        time.sleep(0.05)


def descendants(pid: int) -> list[ProcessIdentity]:
    """Return the living children of a process and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            identity = processes.identify(child)
            found += [identity] if identity is not None else []
            found += descendants(child)
    return found

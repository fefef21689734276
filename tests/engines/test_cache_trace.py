"""Over one trace both engines find the same tokens cached, request by request, in a cache too small for the trace.

For the simulated engine of the session it shows that the cache can be emptied; for vLLM, that the simulation is right.
That one takes long; in `make test`, test_prefix_cache.py shows hits and evictions in both engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import aiohttp
import pytest

from tests.engines.replica import BLOCK_TOKENS, Client, running

#: Sessions with one system prompt and one salt share its blocks.
SYSTEM_PROMPTS = 3
SALTS = ("a", "b")
SESSIONS = 18
TURNS = 64
#: After this many turns one request sends several prompts at once that begin alike.
TURNS_PER_BATCH = 8
BATCH = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """What a session's next request adds to its conversation; ``endings`` are tried out and forgotten."""

    session: int
    added: tuple[int, ...]
    answer_tokens: int
    endings: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What one request found in the cache, beside what its session had computed before."""

    cached_tokens: int
    warm_tokens: int


def drawn(random: Random, fewest: int, most: int) -> tuple[int, ...]:
    """Return that many tokens of the tiny model."""
    return tuple(random.choices(range(300, 3000), k=random.randint(fewest, most)))


def trace() -> list[Turn]:
    """Return the turns in the order in which they are sent."""
    random = Random(1)
    started: set[int] = set()
    prompts = [drawn(random, 60, 400) for _ in range(SYSTEM_PROMPTS)]
    turns = []
    for number in range(TURNS):
        session = random.randrange(SESSIONS)
        added = drawn(random, 10, 400)
        if session not in started:
            started.add(session)
            added = prompts[session % SYSTEM_PROMPTS] + added
        endings = tuple(drawn(random, 1, 80) for _ in range(BATCH)) if number % TURNS_PER_BATCH == 0 else ()
        turns.append(Turn(session, added, random.randint(1, 32), endings))
    return turns


async def ask(client: Client, prompts: Sequence[Sequence[int]], salt: str, tokens: int) -> tuple[int, list[int]]:
    """Return the cached tokens of the last prompt, and the answer to it."""
    body = {"model": "tiny", "prompt": prompts, "cache_salt": salt, "max_tokens": tokens, "temperature": 0}
    reply = await client.post("/v1/completions", body | {"ignore_eos": True, "return_token_ids": True})
    assert reply.status == 200, reply.raw
    answer = reply.body["choices"][-1]["token_ids"]
    assert len(answer) == tokens
    return int(reply.body["usage"]["prompt_tokens_details"]["cached_tokens"]), answer


async def replayed(client: Client) -> list[Found]:
    """Send the trace, each request after the answer before, and return what every request found."""
    await client.settles("vllm:num_requests_running", 0)
    assert (await client.post("/reset_prefix_cache")).body == {"success": True}
    conversations: list[list[int]] = [[] for _ in range(SESSIONS)]
    computed = [0] * SESSIONS
    found = []
    for turn in trace():
        session, salt = turn.session, SALTS[turn.session % len(SALTS)]
        conversation = conversations[session]
        conversation.extend(turn.added)
        if turn.endings:
            cached, _ = await ask(client, [[*conversation, *ending] for ending in turn.endings], salt, 1)
            found.append(Found(cached, len(conversation) // BLOCK_TOKENS * BLOCK_TOKENS))
        cached, answer = await ask(client, [conversation], salt, turn.answer_tokens)
        found.append(Found(cached, computed[session] // BLOCK_TOKENS * BLOCK_TOKENS))
        conversation.extend(answer)
        computed[session] = len(conversation) - 1
    return found


@pytest.mark.parametrize(
    "replica",
    ["simulated", pytest.param("vllm", marks=[pytest.mark.real_engine, pytest.mark.long])],
    indirect=True,
)
async def test_every_request_finds_the_same_in_both_engines(client: Client) -> None:
    with running("simulated", "--prefill-tokens-per-second", "0") as replica:
        async with aiohttp.ClientSession() as session:
            expected = await replayed(Client(replica, session))
    assert await replayed(client) == expected
    # The trace tries what it should: prefixes that are still there, that lost their tail, and that are gone.
    assert sum(each.cached_tokens >= each.warm_tokens > 0 for each in expected) > 20
    assert sum(0 < each.cached_tokens < each.warm_tokens for each in expected) > 5
    assert sum(each.cached_tokens == 0 for each in expected) > 5

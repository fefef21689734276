"""A zygote becomes an engine whose model is divided: one process for each part, all forked, all ended with it."""

from __future__ import annotations

import os
import signal
from typing import Any

import aiohttp
import pytest

from tests.engines.replica import Client
from tests.engines.test_zygote import command_line, leader_of, members, wait_until_gone
from tests.engines.zygotes import waiting
from workers.engines import environment

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(environment.default() is None, reason="the engine environment is not installed"),
]

DIVIDED = ("--tensor-parallel-size", "2")
ASKED = {"model": "tiny", "prompt": "Modules have", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


async def answer_of(*arguments: str) -> tuple[str, list[str]]:
    """Promote a zygote to an engine; return its answer and its workers' titles, once it has ended whole."""
    with waiting("vllm", engine_args=arguments) as zygote:
        replica = zygote.promote()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            reply = await Client(replica, session).post("/v1/completions", dict[str, Any](ASKED))
        assert reply.status == 200, reply.raw
        leader, started = leader_of(replica), set(members(replica))
        titles = [command_line(each).rstrip("\0") for each in started]
        assert zygote.leader == leader, "the process that waited is the one that serves"
        os.kill(leader.pid, signal.SIGTERM)
        wait_until_gone(leader, started)
    return reply.body["choices"][0]["text"], sorted(title for title in titles if "Worker" in title)


async def test_a_zygote_becomes_an_engine_of_two_workers_that_answers_as_one_of_one() -> None:
    whole, alone = await answer_of()
    divided, workers = await answer_of(*DIVIDED)
    assert (alone, workers) == (["VLLM::Worker"], ["VLLM::Worker_TP0", "VLLM::Worker_TP1"])
    assert divided == whole

"""How long the choice of a replica takes for a long prompt of a known session: Hearth's own functions, here."""

from __future__ import annotations

import os
import statistics
import time
import uuid

from benchmarks.machine import Cores
from routing.prefixes.prefix_hash import BYTES_PER_TOKEN, PromptMessage, prefix_hashes
from routing.router import Router, RoutingRequest

PROMPT_TOKENS = 8_000
REPLICAS = 8
SESSIONS = 64
ROUNDS = 16
#: Of a tenant's system prompt, which its sessions share.
SYSTEM_BYTES = 4_000


def median_us(cores: Cores) -> float:
    """Return the median time from a prompt's text to the chosen replica, microseconds, on the contender's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.contender})
    try:
        return statistics.median(_times_us())
    finally:
        os.sched_setaffinity(0, before)


def _times_us() -> list[float]:
    """Return the time of each choice but for the first of each session."""
    router = Router()
    replicas = [uuid.uuid4() for _ in range(REPLICAS)]
    prompts = [_prompt(number) for number in range(SESSIONS)]
    times = []
    for turn in range(ROUNDS):
        for number, messages in enumerate(prompts):
            began = time.perf_counter()
            ask = RoutingRequest(
                prefix=prefix_hashes(b"bench", messages),
                session=b"session %d" % number,
                max_new_tokens=256,
                streamed=True,
            )
            choice = router.choose(ask, replicas)
            took = time.perf_counter() - began
            router.answered(choice, streamed=True)
            router.finish(choice, answered=True)
            if turn:
                times.append(took * 1e6)
    return times


def _prompt(number: int) -> list[PromptMessage]:
    question = b"Session %d asks what keeps a room warm while it rains. " % number
    length = PROMPT_TOKENS * BYTES_PER_TOKEN - SYSTEM_BYTES
    return [
        PromptMessage(head=b"system", text=b"You answer briefly and kindly. ".ljust(SYSTEM_BYTES, b".")),
        PromptMessage(head=b"user", text=(question * (length // len(question) + 1))[:length]),
    ]

"""Warm capacity in use: a replica that is killed under load is replaced by a placeholder that was waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.journey.instance import Instance, Reply, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

CLIENTS = 4


def placeholders(instance: Instance, state: str) -> list[dict[str, Any]]:
    """Return the instance's placeholders in a state, as operators see them."""
    found = instance.operator("/fleet/placeholders").json()["data"]
    return [row for row in found if row["state"] == state]


def replicas(instance: Instance) -> list[dict[str, Any]]:
    """Return the replicas that are ready, as operators see them."""
    deployments = instance.operator("/fleet").json()["deployments"]
    return [row for each in deployments for row in each["replicas"] if row["state"] == "ready"]


@contextmanager
def load(instance: Instance) -> Iterator[list[Reply]]:
    """Keep asking from several clients; yields the answers so far."""
    answers: list[Reply] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(
                instance.chat("acme", f"{uuid4()} Tell me about lists.", headers={"cache-control": "no-store"})
            )

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        over.set()
        for client in clients:
            client.join(60)


@pytest.mark.timeout(400)
def test_a_replica_killed_under_load_is_replaced_by_a_promoted_placeholder(instance: Instance) -> None:
    wait_for(lambda: len(replicas(instance)) == 2, "two ready replicas", seconds=180)
    (waiting,) = wait_for(
        lambda: [row for row in placeholders(instance, "warm") if row["level"] == "h2"], "a warm zygote", seconds=180
    )
    before = {row["id"] for row in replicas(instance)}
    victim = next(engine for engine in instance.engines() if engine.replica_id in before)
    with load(instance) as answers:
        wait_for(lambda: len(answers) > 3 * CLIENTS, "answers under load")
        os.killpg(victim.pid, signal.SIGKILL)

        def new() -> list[dict[str, Any]]:
            return [row for row in replicas(instance) if row["id"] not in before]

        (promoted,) = wait_for(new, "the replacement", seconds=120)
        so_far = len(answers)
        wait_for(lambda: len(answers) > so_far + 3 * CLIENTS, "answers afterwards")
    assert {answer.status for answer in answers} == {200}
    assert promoted["start_level"] == "h2"
    assert waiting["id"] in {row["id"] for row in placeholders(instance, "promoted")}

    engine = next(engine for engine in instance.engines() if engine.replica_id == promoted["id"])
    served = engine.requests()
    deadline = time.monotonic() + 60
    while engine.requests() == served and time.monotonic() < deadline:
        instance.chat("acme", f"{uuid4()} More.", headers={"cache-control": "no-store"})
    assert engine.requests() > served

    starts = instance.operator("/fleet/start-times").json()["data"]
    assert {row["level"] for row in starts} >= {"cold", "h2"}
    wait_for(lambda: placeholders(instance, "warm"), "the next placeholder", seconds=120)

"""The broker, beat or the database is away for half a minute under load: no request notices."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.journey.instance import Instance, request, wait_for
from tests.journey.load import Answer, steady_load

pytestmark = pytest.mark.journey

OUTAGE_SECONDS = 30
CLIENTS = 4


def process(instance: Instance, kind: str, name: str) -> int:
    """Return the pid of a role or a server."""
    return next(int(each["pid"]) for each in instance.status()[kind] if each["name"] == name)


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop the processes and all that descend from them: they answer nothing, and their connections stay open."""
    stopped: list[int] = []
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # first, so that it has no more children
            stopped.append(pid)
            for child in family(pid)[1:]:
                os.kill(child, signal.SIGSTOP)
                stopped.append(child)
        yield
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


def fleet(instance: Instance) -> list[tuple[str, str, str]]:
    """Return every replica with its process and state, as operators see them."""
    deployments = instance.operator("/fleet").json()["deployments"]
    rows: list[dict[str, Any]] = [row for each in deployments for row in each["replicas"]]
    return sorted((str(row["id"]), str(row["generation"]), str(row["state"])) for row in rows)


def settled(instance: Instance) -> list[tuple[str, str, str]] | None:
    """Return the fleet when both replicas are ready."""
    found = fleet(instance)
    return found if [state for _, _, state in found] == ["ready", "ready"] else None


async def outage(instance: Instance, *pids: int) -> list[Answer]:
    """Freeze the processes under load for OUTAGE_SECONDS; return every answer of before, meanwhile and afterwards."""
    async with steady_load(instance, clients=CLIENTS) as answers:
        await more(answers)
        with frozen(*pids):
            before = len(answers)
            await asyncio.sleep(OUTAGE_SECONDS)
            assert len(answers) > before + CLIENTS
        await more(answers)
    return answers


async def more(answers: list[Answer]) -> None:
    """Wait until every client may have had another answer."""
    goal = len(answers) + 3 * CLIENTS
    await asyncio.to_thread(wait_for, lambda: len(answers) >= goal, "more answers", seconds=60)


def lost(instance: Instance) -> list[dict[str, Any]]:
    """Return the events by which a replica was given up for lost."""
    deployments = instance.operator("/fleet").json()["deployments"]
    events = [event for each in deployments for row in each["replicas"] for event in row["events"]]
    return [event for event in events if event["to_state"] == "lost"]


def stored(instance: Instance) -> set[str]:
    """Return the ids of all complete requests of the tenant, as its own export lists them."""
    export = request(f"{instance.management}/usage?format=csv&state=complete", instance.key("acme"))
    assert export.status == 200, export
    return {row["id"] for row in csv.DictReader(io.StringIO(export.text))}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "away",
    [
        pytest.param(("redis", "beat"), id="broker and beat"),
        pytest.param(("postgres",), id="database"),
    ],
)
def test_half_a_minute_without_a_server_fails_no_request_and_loses_no_replica(
    simulated: Instance, away: tuple[str, ...]
) -> None:
    before = wait_for(lambda: settled(simulated), "two ready replicas", seconds=60)
    pids = [process(simulated, "roles" if name == "beat" else "servers", name) for name in away]
    answers = asyncio.run(outage(simulated, *pids))
    assert [answer for answer in answers if not answer.whole] == []
    assert {answer.streamed for answer in answers} == {True, False}
    wait_for(lambda: settled(simulated) == before, "the same two replicas ready", seconds=60)
    assert lost(simulated) == []
    asked = {answer.request_id for answer in answers}
    wait_for(lambda: asked <= stored(simulated), "a row of every answer", seconds=60)

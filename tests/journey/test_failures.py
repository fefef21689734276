"""Lost replicas, a killed gateway: the client sees no error that can be avoided, and no usage is lost."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from uuid import uuid4

import pytest

from tests.journey.instance import MODEL, Engine, Instance, wait_for

pytestmark = [pytest.mark.journey, pytest.mark.real_engine]

BYPASS = {"cache-control": "no-store"}


def _gateway_pids(instance: Instance) -> list[int]:
    """Return the gateway's process, and any that it may have started."""
    main = next(int(role["pid"]) for role in instance.status()["roles"] if role["name"] == "gateway")
    with open(f"/proc/{main}/task/{main}/children") as children:
        return [main, *(int(pid) for pid in children.read().split())]


def _kill(pids: list[int]) -> None:
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_killed_replica_moves_the_session_and_comes_back(instance: Instance) -> None:
    session = {"x-session-id": str(uuid4()), **BYPASS}
    first = instance.chat("acme", "Turn one.", headers=session)
    home = instance.replica_of("acme", first.headers["x-request-id"])
    engine = next(engine for engine in instance.engines() if engine.replica_id == home)
    os.killpg(engine.pid, signal.SIGKILL)
    for turn in range(10):
        answer = instance.chat("acme", f"Turn {turn}.", headers=session)
        assert answer.status == 200, answer
        moved = instance.replica_of("acme", answer.headers["x-request-id"])
        assert moved != home

    def back() -> list[Engine]:
        return [new for new in instance.engines() if new.pid != engine.pid and _is_ready(instance, new)]

    wait_for(lambda: len(back()) == 2, "a second ready replica", seconds=180)
    assert _gateway_pids(instance)


def _is_ready(instance: Instance, engine: Engine) -> bool:
    ready = [replica for replica in instance.status()["replicas"] if replica["state"] == "ready"]
    return engine.replica_id in {str(replica["id"]) for replica in ready}


def test_kill_nine_right_after_an_answer_loses_no_usage(instance: Instance) -> None:
    gateway = _gateway_pids(instance)
    answer = instance.chat("globex", f"{uuid4()} Hello.", temperature=1)
    _kill(gateway)
    row = instance.usage("globex", answer.headers["x-request-id"])
    assert row["state"] == "complete"
    assert row["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
    wait_for(instance.answers, "the gateway", seconds=30)


def test_kill_nine_in_the_middle_of_a_stream_loses_no_usage(instance: Instance) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{uuid4()} Tell me a long story of modules and classes."}],
        "max_tokens": 4000,
        "stream": True,
        "ignore_eos": True,
    }
    asked = urllib.request.Request(
        instance.api_base + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {instance.key('globex')}"},
    )
    gateway = _gateway_pids(instance)  # beforehand: to ask takes longer than the engine needs for a whole answer
    with urllib.request.urlopen(asked, timeout=60) as stream:
        request_id = stream.headers["x-request-id"]
        lines = [stream.readline() for _ in range(40)]
        _kill(gateway)
    assert sum(line.startswith(b"data:") for line in lines) == 20
    row = instance.usage("globex", request_id)
    assert row["state"] == "interrupted"
    assert row["tokens_source"] == "estimated"
    assert row["completion_tokens"] >= 1
    assert row["prompt_tokens"] >= 1
    assert int(row["amount_pico"]) == row["prompt_tokens"] * 150_000 + row["completion_tokens"] * 600_000
    wait_for(instance.answers, "the gateway", seconds=30)

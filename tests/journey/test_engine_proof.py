"""The counters of a real vLLM equal usage by purpose, request by request, whatever mix of requests it served."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.journey.conftest import running
from tests.journey.instance import MODEL, Instance, Reply, wait_for
from workers.engines.driver import TINY_MODEL

pytestmark = [pytest.mark.journey, pytest.mark.real_engine, pytest.mark.long, pytest.mark.timeout(1200)]

NO_CACHE = {"cache-control": "no-store"}
#: Long enough for whole blocks of the prefix cache.
PREFIX = "Modules have names. Classes have methods. " * 40
THINKER = "thinker"
END_OF_REASONING = "</think>"
LAST_TOKEN = 3071


@pytest.fixture(scope="module")
def alone() -> Iterator[Instance]:
    """An instance with one real vLLM replica, which this test starts and stops, and room for a second one."""
    with running("--engine", "vllm", "--replicas", "1", "--placeholders", "0", HEARTH_SLOTS="2") as found:
        yield found


def scale(instance: Instance, replicas: int, model: str = MODEL) -> None:
    answer = instance.operator(f"/fleet/deployments/{model}/scale", {"replicas": replicas})
    assert answer.status == 200, answer


def boots(instance: Instance) -> list[dict[str, Any]]:
    """Compare, and return the engines that have ended and agree, the newest first: the drain may need a moment."""
    compared = instance.hearth("reconcile", "--all", "--settle", "0", "--json")
    found: list[dict[str, Any]] = json.loads(compared.stdout)["boots"]
    return [each for each in found if each["ended_at"] and each["state"] not in {"settling", "gap"}]


def stopped(instance: Instance) -> dict[str, Any]:
    """Stop the replica, and return the result of its engine once it has ended."""
    before = len(boots(instance))
    scale(instance, 0)
    return wait_for(lambda: found[0] if len(found := boots(instance)) > before else None, "its end", seconds=300)


def stream(instance: Instance, **fields: Any) -> str:
    """Read a stream to its end, and return the request's id."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{uuid4()} Go on."}], "stream": True, **fields}
    base = urlsplit(instance.api_base)
    link = http.client.HTTPConnection(str(base.hostname), base.port, timeout=120)
    headers = {"content-type": "application/json", "authorization": f"Bearer {instance.key('globex')}", **NO_CACHE}
    link.request("POST", f"{base.path}/chat/completions", json.dumps(body), headers)
    answer = link.getresponse()
    assert answer.status == 200
    answer.read()
    link.close()
    return str(answer.headers["x-request-id"])


def cut(instance: Instance) -> None:
    """Leave a stream after its first bytes; the engine then ends the request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{uuid4()} Go on."}], "stream": True}
    base = urlsplit(instance.api_base)
    with socket.create_connection((str(base.hostname), base.port or 80), timeout=300) as link:
        content = json.dumps({**body, "max_tokens": 400, "ignore_eos": True}).encode()
        head = (
            f"POST {base.path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {instance.key('globex')}\r\ncache-control: no-store\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        link.sendall(head.encode() + content)
        received = b""
        while b"data: {" not in received:
            piece = link.recv(4096)
            assert piece, received
            received += piece
    assert received.startswith(b"HTTP/1.1 200")


def mix(instance: Instance) -> None:
    """Send what tenants send: whole, streamed, several choices, warm prefixes, repeats, refused, many at once."""
    warm = [instance.chat("acme", f"{PREFIX} {each}", headers=NO_CACHE) for each in ("One.", "Two.", "Three.")]
    assert [each.status for each in warm] == [200] * 3
    assert instance.chat("acme", f"{uuid4()} Hello.", n=3, temperature=1, headers=NO_CACHE).status == 200
    assert instance.chat("acme", "Hello.", temperature=-1, headers=NO_CACHE).status == 400
    same = f"{uuid4()} The same again."
    repeated = [instance.chat("acme", same, temperature=0) for _ in range(2)]
    assert [each.headers["x-cache"] for each in repeated] == ["miss", "hit"]
    stream(instance, max_tokens=40)
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(instance.chat, "globex", f"{uuid4()} Count.", max_tokens=5 + each, headers=NO_CACHE)
            for each in range(16)
        ]
        assert {each.result().status for each in sent} == {200}


def test_an_engine_that_ends_in_order_counted_what_usage_has_by_purpose(alone: Instance) -> None:
    mix(alone)
    found = stopped(alone)
    assert (found["state"], found["end"], found["note"]) == ("equal", "orderly", ""), found
    assert found["used_tokens"] == found["counted_tokens"] > 0
    assert set(found["by_purpose"]) == {"tenant", "canary"}


def test_streams_that_clients_leave_are_within_what_the_engine_counted(alone: Instance) -> None:
    scale(alone, 1)
    for _ in range(4):
        cut(alone)
    assert alone.chat("acme", f"{uuid4()} Hello.", headers=NO_CACHE).status == 200
    found = stopped(alone)
    assert (found["state"], found["end"], found["gap_tokens"]) == ("bounded", "orderly", 0), found
    # One may end before the gateway sees that its client has left.
    assert 1 <= found["cut_requests"] <= 4, found
    assert found["used_tokens"] + found["cut_tokens"] <= found["counted_tokens"], found
    assert 0 <= found["unattributed_tokens"] <= found["allowed_tokens"], found
    assert found["used_tokens"] > 0, found


def thinking_model(folder: Path) -> Path:
    """Write the tiny model with a tokenizer whose last token, which it hardly ever writes, ends reasoning."""
    shutil.copytree(TINY_MODEL, folder)
    for each in (folder, *folder.parents):
        if each.owner() == folder.owner():
            each.chmod(each.stat().st_mode | 0o011)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[END_OF_REASONING] = vocabulary.pop(last)
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != last]
    file.write_text(json.dumps(tokenizer))
    return folder


def reasoned(instance: Instance, **fields: Any) -> tuple[int, int]:
    """Return the reasoning tokens and all tokens of an answer, about which its usage row and its engine agree."""
    answer = instance.chat("acme", f"{uuid4()} Think.", model=THINKER, headers=NO_CACHE, **fields)
    assert answer.status == 200, answer
    reported = answer.json()["usage"]
    row = instance.usage("acme", answer.headers["x-request-id"])
    assert row["completion_tokens"] == reported["completion_tokens"], row
    assert row["reasoning_tokens"] == reported["completion_tokens_details"]["reasoning_tokens"], row
    return row["reasoning_tokens"], row["completion_tokens"]


def retried(instance: Instance) -> tuple[str, list[Reply]]:
    """Kill one of two engines while both work; return its replica and the answers to all requests, whole ones."""
    long = {"model": THINKER, "max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(instance.chat, "globex", f"{uuid4()} Count.", headers=NO_CACHE, **long) for _ in range(8)]
        engines = instance.engines()
        assert len(engines) == 2, engines
        wait_for(
            lambda: all(each.counter("vllm:num_requests_running") for each in engines), "work for both", seconds=60
        )
        os.kill(engines[0].pid, signal.SIGKILL)
        answers = [each.result() for each in sent]
    assert {each.status for each in answers} == {200}, answers
    return engines[0].replica_id, answers


def test_retries_and_reasoning_are_in_usage_as_the_engines_counted_them(alone: Instance, tmp_path: Path) -> None:
    source = thinking_model(tmp_path / "thinker")
    scale(alone, 0)
    options = ("--replicas", "2", "--engine-args=--reasoning-parser step3")
    done = alone.hearth("deploy", THINKER, "--source", str(source), *options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def ready() -> bool:
        deployments: list[dict[str, Any]] = alone.operator("/fleet").json()["deployments"]
        found = next(each for each in deployments if each["name"] == THINKER)
        return [each["state"] for each in found["replicas"]] == ["ready"] * 2

    wait_for(ready, "two replicas", seconds=400)
    wait_for(lambda: alone.chat("acme", "Hello.", model=THINKER).status == 200, "an answer", seconds=30)
    thoughts, completion = reasoned(alone, max_tokens=20, ignore_eos=True)
    assert thoughts == completion == 20
    streamed = alone.usage("globex", stream(alone, model=THINKER, max_tokens=20, ignore_eos=True))
    assert (streamed["reasoning_tokens"], streamed["completion_tokens"]) == (20, 20), streamed
    assert reasoned(alone, max_tokens=20, logit_bias={str(LAST_TOKEN): 100}) == (0, 20)

    killed, answers = retried(alone)
    scale(alone, 0, THINKER)
    found = wait_for(lambda: ended if len(ended := _of_thinker(alone)) >= 2 else None, "their ends", seconds=300)
    (broken,) = (each for each in found if each["replica_id"] == killed and each["end"] == "killed")
    (whole,) = (each for each in found if each["replica_id"] != killed)
    assert (whole["state"], whole["end"]) == ("equal", "orderly"), whole
    assert whole["used_tokens"] == whole["counted_tokens"] > 0
    assert set(whole["by_purpose"]) == {"tenant", "canary"}
    assert broken["state"] in {"bounded", "lost", "equal"}, broken
    assert broken["gap_tokens"] == 0
    assert "retry" in broken["by_purpose"]
    assert 1 <= broken["cut_requests"] < len(answers), broken


def cut_connections(port: int) -> None:
    """End every connection to a port of this machine, as a fault of the network between gateway and engine does."""
    subprocess.run(["ss", "--kill", "--tcp", "dst", f"127.0.0.1:{port}"], capture_output=True, check=True)


def can_cut_connections() -> bool:
    """Return whether the kernel lets this user end connections."""
    if shutil.which("ss") is None:
        return False
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as link:
        cut_connections(server.getsockname()[1])
        link.settimeout(1)
        try:
            link.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


@pytest.mark.skipif(not can_cut_connections(), reason="needs ss, root and a kernel with INET_DIAG_DESTROY")
def test_an_engine_whose_requests_were_retried_elsewhere_ends_in_order_within_its_bounds(alone: Instance) -> None:
    before = {each["id"] for each in boots(alone)}
    scale(alone, 2)

    def ready() -> bool:
        return [each["state"] for each in alone.status()["replicas"]] == ["ready"] * 2

    wait_for(ready, "two replicas", seconds=400)
    faulty, survivor = alone.engines()
    long = {"max_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(alone.chat, "globex", f"{uuid4()} Count.", headers=NO_CACHE, **long) for _ in range(8)]
        working = [faulty, survivor]
        wait_for(lambda: all(each.counter("vllm:num_requests_running") for each in working), "work for both", 60)
        cut_connections(faulty.port)
        answers = [each.result() for each in sent]
    assert {each.status for each in answers} == {200}, answers
    scale(alone, 0)

    def ended() -> list[dict[str, Any]]:
        new = [each for each in boots(alone) if each["id"] not in before]
        return new if len(new) == 2 else []

    found = {each["replica_id"]: each for each in wait_for(ended, "their ends", seconds=300)}
    whole, cut_short = found[survivor.replica_id], found[faulty.replica_id]
    assert (whole["state"], whole["end"]) == ("equal", "orderly"), whole
    assert whole["used_tokens"] == whole["counted_tokens"] > 0
    assert set(whole["by_purpose"]) == {"tenant", "canary"}
    assert (cut_short["state"], cut_short["end"], cut_short["gap_tokens"]) == ("bounded", "orderly", 0), cut_short
    assert "retry" in cut_short["by_purpose"]
    assert 1 <= cut_short["cut_requests"] < len(answers), cut_short
    assert cut_short["used_tokens"] + cut_short["unattributed_tokens"] == cut_short["counted_tokens"], cut_short


def _of_thinker(instance: Instance) -> list[dict[str, Any]]:
    """Return the engines of the thinking model that have ended and served requests."""
    return [each for each in boots(instance) if each["model"] == THINKER and each["by_purpose"]]

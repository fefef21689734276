"""The agent against simulated engines: real processes, real HTTP, the real database."""

from __future__ import annotations

import asyncio
import datetime as dt
import http.client
import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import orjson
import psycopg
import pytest
from django.conf import LazySettings
from django.db.models.functions import Now

from gateway.upstream.client import UpstreamClient
from tenants.audit import SYSTEM
from tenants.ids import ReplicaId
from tests.ports import free_ports
from tests.workers.agent_processes import (
    NODE,
    QUICK,
    KeptCanaries,
    agent_thread,
    celery_agent,
    database_refusing_connections,
    database_url,
    identity_of,
    in_state,
    records,
    until,
)
from tests.workers.conftest import Fleet
from workers import processes
from workers.agent.agent import Agent
from workers.agent.processes.engine import last_line
from workers.engines.simulated import SimulatedDriver
from workers.fleet import deployments
from workers.models import Deployment, Node, Replica, ReplicaEvent, StartTime
from workers.scheduler import reconciler
from workers.serving import endpoints, engine_keys
from workers.serving.endpoints import Endpoint
from workers.simulated.settings import KV_BYTES_PER_TOKEN

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


def want(fleet: Fleet, replicas: int, *engine_args: str) -> None:
    """Create a deployment, and let reconcile create the rows."""
    type(fleet.revision).objects.filter(id=fleet.revision.id).update(engine_args=list(engine_args))
    fleet.deploy(replicas)
    reconciler.tick()


def ask(row: Replica, method: str, path: str, body: object = None) -> int:
    """Send one request to a replica's engine."""
    assert row.port is not None
    link = http.client.HTTPConnection(row.host, row.port, timeout=30)
    try:
        headers = {
            "authorization": f"Bearer {engine_keys.derive(cast(ReplicaId, row.id), row.engine_key)}",
            "content-type": "application/json",
        }
        link.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = link.getresponse()
        response.read()
        return response.status
    finally:
        link.close()


def headers_for(row: Replica) -> dict[str, str]:
    """Return the headers that authorise requests to a replica's engine."""
    key = engine_keys.derive(cast(ReplicaId, row.id), row.engine_key)
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


def path_of(row: Replica) -> list[str]:
    """Return the states the replica went through."""
    return list(ReplicaEvent.objects.filter(replica=row).order_by("id").values_list("to_state", flat=True))


def test_a_wanted_replica_starts_answers_and_is_counted(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 2, "--startup-seconds", "0.5")
    canaries = KeptCanaries()
    with agent_thread(data_dir, canaries):
        first, second = until(in_state("ready", 2))
        assert [endpoint.base_url for endpoint in endpoints.ready()] == [
            f"http://127.0.0.1:{row.port}" for row in (first, second)
        ]
        until(lambda: Replica.objects.filter(observed_at__isnull=False).count() == 2)
    assert path_of(first) == ["requested", "reserved", "starting", "warming", "ready"]
    assert first.generation == 1 and first.startup_seconds is not None and first.startup_seconds > 0
    assert first.context_tokens == 2048
    assert {start.load_seconds for start in StartTime.objects.all()} == {0.5}, "as the engine's log says"
    assert {start.fetch_seconds for start in StartTime.objects.all()} == {None}, "no files were fetched"
    assert {canary.replica_id for canary in canaries.begun} == {first.id, second.id}
    assert all(result.answered and result.completion_tokens == 1 for result in canaries.ended)
    assert ask(first, "GET", "/v1/models") == 200
    assert {record.pid for record in records(data_dir)} == {first.pid, second.pid}
    assert Node.objects.get().epoch == 1


def test_an_engine_listens_on_an_ipv6_address_and_a_port_of_the_nodes_range(
    fleet: Fleet, data_dir: Path, settings: LazySettings
) -> None:
    first = free_ports(2)
    settings.NODE_ADDRESS, settings.ENGINE_PORTS = "::1", range(first, first + 2)
    want(fleet, 1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready", 1))
        (endpoint,) = endpoints.ready()
        assert endpoint.base_url == f"http://[::1]:{row.port}"
        assert row.port in settings.ENGINE_PORTS
        status, _ = asyncio.run(answer_of(endpoint))
    assert status == 200


def written_once_in(running: Agent, *, rounds: int) -> dt.datetime | None:
    """Return when the replica's row was written last, if it was not in so many rounds of its agent; else None."""
    before = Replica.objects.get().observed_at
    for _ in range(rounds):
        until(partial(_another_round, running, running.round_at))
    return before if Replica.objects.get().observed_at == before else None


def _another_round(running: Agent, last: float | None) -> bool:
    return running.round_at != last


async def answer_of(endpoint: Endpoint) -> tuple[int, bytes]:
    """Ask an engine as the gateway does."""
    client = UpstreamClient(connect_seconds=5.0, read_timeout_seconds=30.0)
    try:
        body = orjson.dumps({"model": endpoint.model_name, "prompt": "Hello", "max_tokens": 1})
        headers = {"content-type": "application/json", "authorization": f"Bearer {endpoint.api_key}"}
        response = await client.post(endpoint.base_url, "/v1/completions", headers, body, stream=False)
        return response.status, response.take()
    finally:
        await client.close()


def test_what_an_engine_says_of_its_cache_and_host_memory_is_in_its_replicas_row(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1, "--kv-offloading-size", "1")
    quiet = replace(QUICK, quiet_seconds=600, unchanged_seconds=600)
    with agent_thread(data_dir, timeouts=quiet) as running:
        (row,) = until(in_state("ready", 1))
        until(lambda: Replica.objects.filter(observed_at__isnull=False).exists())
        idle_at = until(lambda: written_once_in(running, rounds=6))
        assert ask(row, "POST", "/v1/completions", {"model": "tiny-chat", "prompt": "Hi", "max_tokens": 1}) == 200
        until(lambda: Replica.objects.filter(observed_at__gt=idle_at).exists())
    row = Replica.objects.get()
    assert row.cache_tokens is not None and row.host_cache_tokens is not None
    assert row.host_cache_tokens == 2**30 // KV_BYTES_PER_TOKEN


def test_a_killed_engine_leaves_routing_at_once_and_comes_back_as_a_new_generation(
    fleet: Fleet, data_dir: Path
) -> None:
    want(fleet, 1)
    with psycopg.connect(database_url(), autocommit=True) as listener, agent_thread(data_dir):
        (before,) = until(in_state("ready"))
        listener.execute(f"LISTEN {endpoints.CHANNEL}")
        os.killpg(identity_of(before).pid, signal.SIGKILL)
        notice = next(listener.notifies(timeout=10))
        assert notice.channel == "hearth_fleet"
        after = until(lambda: Replica.objects.filter(state="ready", generation=2).first())
    assert after is not None and after.id == before.id
    assert after.pid != before.pid
    assert path_of(after)[5:] == ["backoff", "starting", "warming", "ready"]
    reason = ReplicaEvent.objects.get(replica=after, to_state="backoff").reason
    # A leader whose threads have not all ended is a zombie that cannot be collected yet: then its status is not known.
    assert reason.startswith(("its process ended with status -9", "its process is gone"))


def test_arguments_that_the_engine_refuses_are_the_reason_in_its_parsers_words(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1, "--dytpe", "float16")
    with agent_thread(data_dir):
        (row,) = until(in_state("backoff"))
    assert row.last_error == ("the engine's own parser refuses its arguments: unrecognized arguments: --dytpe float16")


def test_an_engine_whose_main_process_dies_takes_its_children_with_it(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        leader = identity_of(row)
        os.kill(leader.pid, signal.SIGKILL)
        until(lambda: Replica.objects.filter(generation=2, state="ready").first())
    assert processes.session_members(leader) == []


def test_engines_outlive_an_agent_and_are_adopted(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (before,) = until(in_state("ready"))
    assert processes.is_running(identity_of(before))
    with agent_thread(data_dir):
        until(lambda: Node.objects.get().epoch == 2)
        until(lambda: Replica.objects.filter(observed_at__gt=before.observed_at or before.state_since).exists())
        (after,) = until(in_state("ready"))
    assert (after.pid, after.generation, after.state_since) == (before.pid, 1, before.state_since)


def test_a_celery_worker_is_an_agent_and_its_engines_survive_kill_nine(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with celery_agent(data_dir) as first:
        (before,) = until(in_state("ready"), seconds=40)
        first.kill()
        first.wait()
    assert processes.is_running(identity_of(before))
    with celery_agent(data_dir) as second:
        until(lambda: Node.objects.get().agent_pid == second.pid, seconds=40)
        os.killpg(identity_of(before).pid, signal.SIGKILL)
        after = until(lambda: Replica.objects.filter(state="ready", generation=2).first(), seconds=40)
    assert after is not None and second.returncode == 0
    assert processes.is_running(identity_of(after)), "stopping an agent ends no engine"


def test_of_two_agents_on_a_node_one_acts_and_the_other_takes_over(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir) as first:
        (before,) = until(in_state("ready"))
        with agent_thread(data_dir):
            time.sleep(1.0)
            assert Node.objects.get().epoch == 1
            first.stop()
            until(lambda: Node.objects.get().epoch == 2)
            (after,) = until(in_state("ready"))
    assert after.pid == before.pid


def test_an_agent_that_another_one_superseded_changes_nothing_more(fleet: Fleet, data_dir: Path) -> None:
    with agent_thread(data_dir):
        until(lambda: Node.objects.get().epoch == 1)
        Node.objects.update(epoch=2)
        time.sleep(0.5)
        want(fleet, 1)
        time.sleep(0.8)
    assert [row.state for row in Replica.objects.all()] == ["reserved"]


def test_a_replica_no_longer_wanted_finishes_its_requests_and_leaves_no_process(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1, "--decode-tokens-per-second", "20")
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        leader = identity_of(row)
        link = http.client.HTTPConnection(row.host, row.port or 0, timeout=30)
        body = {"model": "tiny-chat", "prompt": "Tell me", "max_tokens": 40, "ignore_eos": True}
        headers = {
            "authorization": f"Bearer {engine_keys.derive(cast(ReplicaId, row.id), row.engine_key)}",
            "content-type": "application/json",
        }
        link.request("POST", "/v1/completions", json.dumps(body), headers)
        time.sleep(0.5)
        deployments.scale(SYSTEM, "chat", 0)
        reconciler.tick()
        assert endpoints.ready() == ()
        response = link.getresponse()
        answer = json.loads(response.read())
        link.close()
        assert (response.status, answer["usage"]["completion_tokens"]) == (200, 40)
        (stopped,) = until(in_state("stopped"))
    assert path_of(stopped)[-2:] == ["draining", "stopped"]
    assert processes.session_members(leader) == []
    assert records(data_dir) == []


def test_a_drain_ends_at_its_deadline_whatever_still_runs(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1, "--decode-tokens-per-second", "1")
    Deployment.objects.update(drain_seconds=1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        link = http.client.HTTPConnection(row.host, row.port or 0, timeout=60)
        body = {"model": "tiny-chat", "prompt": "Tell me", "max_tokens": 500, "ignore_eos": True, "stream": True}
        link.request("POST", "/v1/completions", json.dumps(body), headers_for(row))
        response = link.getresponse()
        assert response.readline().startswith(b"data: ")
        deployments.scale(SYSTEM, "chat", 0)
        reconciler.tick()
        until(in_state("stopped"))
        link.close()
    assert processes.session_members(identity_of(row)) == []


def test_an_engine_that_hangs_is_taken_out_of_routing_and_restarted(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        os.kill(identity_of(row).pid, signal.SIGSTOP)
        until(lambda: Replica.objects.filter(state="ready", generation=2).first(), seconds=30)
    assert path_of(row)[5:] == ["suspect", "backoff", "starting", "warming", "ready"]


def test_an_engine_that_pauses_for_a_moment_is_forgiven(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        os.kill(identity_of(row).pid, signal.SIGSTOP)
        until(in_state("suspect"))
        os.kill(identity_of(row).pid, signal.SIGCONT)
        (after,) = until(in_state("ready"))
    assert after.generation == 1


def test_a_wedged_engine_with_a_healthy_face_is_found_by_its_canary(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (row,) = until(in_state("ready"))
        assert ask(row, "POST", "/_sim/faults", {"hang-after-tokens": 0}) == 200
        until(lambda: Replica.objects.filter(state="ready", generation=2).first(), seconds=30)
    reasons = ReplicaEvent.objects.filter(replica=row, to_state="suspect").values_list("reason", flat=True)
    assert list(reasons) == ["canary: no answer in time"]


@pytest.mark.long
def test_an_engine_that_cannot_start_is_given_up_after_five_tries(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1, "--fault", "fail-start=1")
    with agent_thread(data_dir):
        (row,) = until(in_state("failed"), seconds=60)
        time.sleep(0.5)
    assert row.generation == 5
    assert path_of(row).count("backoff") == 4
    delays = [float(r.split("next start in ")[1].split()[0]) for r in _reasons(row, "backoff")]
    assert all(0.08 * 2**n - 0.05 <= delay <= 0.12 * 2**n + 0.05 for n, delay in enumerate(delays))  # to 0.1 s
    assert "5 failed starts" in _reasons(row, "failed")[0]
    tails = list(ReplicaEvent.objects.filter(replica=row, to_state__in=("backoff", "failed")).values_list("log_tail"))
    assert len(tails) == 5 and all(text for (text,) in tails)
    assert records(data_dir) == []


def test_a_replica_that_the_database_refuses_keeps_no_other_from_starting(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 2)
    spoiled, other = Replica.objects.order_by("id")
    Replica.objects.filter(id=spoiled.id).update(generation=2**31 - 1)  # the next one exceeds the column's range
    with agent_thread(data_dir):
        assert [row.id for row in until(in_state("ready"))] == [other.id]
        Node.objects.update(lease_expires_at=Now())
        until(lambda: Node.objects.filter(lease_expires_at__gt=Now()).exists())
    spoiled.refresh_from_db()
    assert (spoiled.state, spoiled.pid) == ("reserved", None)


def test_an_agent_removes_old_logs_but_none_that_a_process_writes_to(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    logs = data_dir / "logs"
    (link := data_dir.with_name("link")).symlink_to(data_dir)
    with agent_thread(link):
        (row,) = until(in_state("ready"))
        mine = logs / f"engine-{str(row.id)[-8:]}.log"
        old, recent, other = logs / "engine-0123abcd.log", logs / "zygote-0123abcd.log", logs / "agent.log"
        for path in (old, recent, other):
            path.touch()
        for path in (mine, old, other):
            os.utime(path, (0, 0))
        until(lambda: not old.exists())
        assert mine.exists() and recent.exists() and other.exists()


def test_the_last_words_of_an_engine_fit_into_the_database(tmp_path: Path) -> None:
    log_path = tmp_path / "engine.log"
    log_path.write_bytes(b"started\nkilled at \xff\0\0address 0\n\0\n")
    assert last_line(log_path) == "killed at \ufffdaddress 0"
    log_path.write_bytes(b"failed on prompt='The secret plan'\n")
    assert last_line(log_path) == "failed on prompt=(left out)"
    log_path.write_text(f"ready\nERROR failed on prompt='{'my secret plan ' * 1000}'\n")
    assert last_line(log_path) == ""  # what names the prompt lies before what is read


def test_a_replica_lost_with_its_node_goes_on_when_the_agent_returns(
    fleet: Fleet, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (before,) = until(in_state("ready"))
    time.sleep(1.0)
    # its process is older than a start may take, but it does not start again
    monkeypatch.setattr(SimulatedDriver, "startup_budget_seconds", 1.0)
    Replica.objects.update(state="lost", state_since=Now())
    with agent_thread(data_dir):
        (after,) = until(in_state("ready"))
    assert (after.pid, after.generation) == (before.pid, before.generation)
    assert after.startup_seconds == before.startup_seconds


def test_an_engine_that_is_not_ready_in_time_is_started_again(
    fleet: Fleet, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDriver, "startup_budget_seconds", 0.5)
    want(fleet, 1, "--startup-seconds", "60")
    with agent_thread(data_dir):
        row = until(lambda: Replica.objects.filter(generation=2).first())
    assert row is not None and _reasons(row, "backoff")[0].startswith("not ready after 0 s")


def test_an_engine_of_an_older_fence_is_killed_not_adopted(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (before,) = until(in_state("ready"))
    Replica.objects.update(fence=before.fence + 1000)
    with agent_thread(data_dir):
        after = until(lambda: Replica.objects.filter(state="ready", generation=2).first())
    assert after is not None and after.pid != before.pid
    assert processes.session_members(identity_of(before)) == []


def test_an_engine_that_its_agent_noted_nowhere_is_found_and_killed(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 1)
    with agent_thread(data_dir):
        (before,) = until(in_state("ready"))
    for record in (data_dir / "engines").glob("*.json"):
        record.unlink()
    Replica.objects.update(pid=None)
    with agent_thread(data_dir):
        until(lambda: Replica.objects.filter(state="ready", generation=2).first())
    assert processes.session_members(identity_of(before)) == []


def test_while_the_database_is_away_engines_go_on_and_afterwards_the_agent_does(fleet: Fleet, data_dir: Path) -> None:
    want(fleet, 2)
    with agent_thread(data_dir):
        first, second = until(in_state("ready", 2))
        with database_refusing_connections():
            os.killpg(identity_of(first).pid, signal.SIGKILL)
            time.sleep(1.0)
            assert processes.is_running(identity_of(second))
            assert ask(second, "GET", "/health") == 200
            assert len(path_of(first)) == 5
        until(lambda: Replica.objects.filter(id=first.id, state="ready", generation=2).first())
    assert path_of(second) == ["requested", "reserved", "starting", "warming", "ready"]


def test_an_agent_waits_for_its_node_to_be_registered(fleet: Fleet, data_dir: Path) -> None:
    Node.objects.update(name="elsewhere")
    with agent_thread(data_dir):
        time.sleep(0.5)
        Node.objects.update(name=NODE)
        until(lambda: Node.objects.get().epoch == 1)
    assert QUICK.round_seconds < 0.5


def _reasons(row: Replica, state: str) -> list[str]:
    return list(
        ReplicaEvent.objects.filter(replica=row, to_state=state).order_by("id").values_list("reason", flat=True)
    )

"""The counters that agents keep of engine processes equal usage: real agents, engines, logs, drains and comparisons."""

from __future__ import annotations

import dataclasses
import datetime as dt
import http.client
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from django.conf import LazySettings

from billing.drain.drain import Drain
from billing.models import BootUsage, UsageRecord
from billing.wal.writer import WalWriter
from hearth.canary_log import open_log
from reconciliation import report, run
from reconciliation.boots import SETTLE
from reconciliation.models import BootResult
from tenants.ids import ReplicaId, RequestId, new_id
from tests.billing.wal_records import end, start
from tests.workers.agent_processes import agent_thread, in_state, until
from tests.workers.conftest import Fleet
from workers.agent.probes.http_probe import EngineCounters, EngineLoad
from workers.agent.store import boot_rows
from workers.models import Deployment, EngineBoot, Replica
from workers.scheduler import reconciler
from workers.serving import engine_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

NO_WAIT = dt.timedelta(0)
PROMPT = {"model": "tiny-chat", "prompt": "Tell me of the sea and of its many fish"}


@dataclass
class Books:
    """The usage log of the test, which its drain stores."""

    wal: WalWriter
    directory: Path

    def drain(self) -> None:
        """Store what is in the log."""
        drain = Drain(self.directory, "n1")
        try:
            while drain.step():
                pass
        finally:
            drain.close()

    def judge(self, boot: EngineBoot) -> BootResult:
        """Store the log, compare, and return what was found of the process."""
        self.drain()
        run.compare(settle=NO_WAIT)
        return BootResult.objects.get(boot=boot)


@pytest.fixture
def books(fleet: Fleet, data_dir: Path, settings: LazySettings) -> Iterator[Books]:
    settings.WAL_DIR = data_dir / "wal"
    wal = WalWriter(settings.WAL_DIR, "gateway")
    yield Books(wal, data_dir / "wal")
    wal.close()


def ask(row: Replica, path: str, body: dict[str, Any]) -> http.client.HTTPConnection:
    """Send a request to an engine, and return its connection with nothing read of it."""
    link = http.client.HTTPConnection(row.host, cast(int, row.port), timeout=60)
    headers = {
        "authorization": f"Bearer {engine_keys.derive(ReplicaId(row.id), row.engine_key)}",
        "content-type": "application/json",
    }
    link.request("POST", path, json.dumps(body), headers)
    return link


def serve(books: Books, row: Replica, body: dict[str, Any], *, leave_after: int | None = None) -> None:
    """Send a request as a gateway does, with its records; the client leaves after ``leave_after`` bytes."""
    begun = msgspec.structs.replace(
        start(RequestId(new_id())),
        replica_id=ReplicaId(row.id),
        replica_generation=row.generation,
        sequences=body.get("n", 1),
        prompt_copies=body.get("n", 1),
    )
    books.wal.append(begun)
    ended = msgspec.structs.replace(end(begun.request_id, tokens=(0, 0, 0)), replica_id=ReplicaId(row.id))
    link = ask(row, "/v1/completions", {**PROMPT, **body})
    try:
        response = link.getresponse()
        if leave_after is not None:
            response.read(leave_after)
            ended = msgspec.structs.replace(ended, state="client_gone", tokens_source="streamed", completion_tokens=1)
        elif response.status != 200:
            ended = msgspec.structs.replace(ended, state="refused", http_status=response.status)
        else:
            usage = json.loads(response.read())["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            ended = msgspec.structs.replace(
                ended,
                prompt_tokens=usage["prompt_tokens"] - cached,
                cached_prompt_tokens=cached,
                completion_tokens=usage["completion_tokens"],
            )
    finally:
        link.close()
    books.wal.append(ended)


def break_off(books: Books, row: Replica) -> None:
    """Send a request that the engine breaks off, with the records that a gateway writes before it tries another one."""
    switch(row, {"cut-after-tokens": 3})
    link = ask(row, "/v1/completions", {**PROMPT, "max_tokens": 20})
    with pytest.raises(http.client.RemoteDisconnected):
        link.getresponse()
    link.close()
    switch(row, {"cut-after-tokens": None})
    begun = msgspec.structs.replace(
        start(RequestId(new_id())),
        replica_id=ReplicaId(row.id),
        replica_generation=row.generation,
        purpose="retry",
        retry_of=RequestId(new_id()),
    )
    ended = msgspec.structs.replace(
        end(begun.request_id, state="engine_error", tokens=(0, 0, 0)),
        replica_id=ReplicaId(row.id),
        tokens_source="estimated",
    )
    books.wal.append(begun)
    books.wal.append(ended)


def switch(row: Replica, faults: dict[str, int | None]) -> None:
    """Set faults of a simulated engine."""
    link = ask(row, "/_sim/faults", faults)
    assert link.getresponse().status == 200
    link.close()


def deploy(fleet: Fleet, *engine_args: str, replicas: int = 1) -> Deployment:
    type(fleet.revision).objects.filter(id=fleet.revision.id).update(engine_args=list(engine_args))
    deployment = fleet.deploy(replicas)
    reconciler.tick()
    return deployment


def stop(deployment: Deployment) -> None:
    Replica.objects.filter(deployment=deployment).update(desired_state="stopped")


def test_the_counters_of_boots_that_end_in_order_equal_usage(fleet: Fleet, data_dir: Path, books: Books) -> None:
    deployment = deploy(fleet, replicas=2)
    with agent_thread(data_dir, open_log("agent")):
        row, faulty = until(in_state("ready", 2))
        for _ in range(3):
            serve(books, row, {"max_tokens": 20})
        for _ in range(2):
            break_off(books, faulty)
            serve(books, row, {"max_tokens": 5, "n": 3})
        serve(books, row, {"max_tokens": -1})
        serve(books, faulty, {"max_tokens": 20})
        until(lambda: EngineBoot.objects.filter(completion_tokens__gt=70).exists())
        stop(deployment)
        until(in_state("stopped", 2))
    boot, other = (EngineBoot.objects.get(replica=each) for each in (row, faulty))
    assert (boot.end, boot.whole, boot.open_sequences) == (other.end, other.whole, other.open_sequences)
    assert (boot.end, boot.whole, boot.open_sequences) == ("orderly", True, 0)
    found = books.judge(boot)
    assert (found.state, found.note) == ("equal", "")
    documents = {each.replica_id: each for each in report.read(show_all=True).boots}
    survivor, broken = documents[str(row.id)], documents[str(faulty.id)]
    assert set(survivor.by_purpose) == {"tenant", "canary"}, "it served the retries, which are the tenant's requests"
    assert survivor.used_tokens == survivor.counted_tokens
    assert boot.finished_sequences == sum(
        BootUsage.objects.filter(replica_id=row.id).values_list("sequences", flat=True)
    )
    assert (broken.state, broken.gap_tokens, broken.cut_requests) == ("bounded", 0, 2)
    assert set(broken.by_purpose) == {"tenant", "canary", "retry"}
    assert broken.used_tokens + broken.unattributed_tokens == broken.counted_tokens


def test_an_engine_killed_amid_a_stream_loses_what_its_last_scrape_had(
    fleet: Fleet, data_dir: Path, books: Books
) -> None:
    deployment = deploy(fleet, "--decode-tokens-per-second", "50")
    with agent_thread(data_dir, open_log("agent")):
        (row,) = until(in_state("ready", 1))
        serve(books, row, {"max_tokens": 5})
        boot = EngineBoot.objects.get()
        before = boot.completion_tokens
        link = http.client.HTTPConnection(row.host, cast(int, row.port), timeout=60)
        key = engine_keys.derive(ReplicaId(row.id), row.engine_key)
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        begun = msgspec.structs.replace(
            start(RequestId(new_id())), replica_id=ReplicaId(row.id), replica_generation=row.generation
        )
        books.wal.append(begun)
        asked = {"model": "tiny-chat", "prompt": "One two three", "max_tokens": 1000, "stream": True}
        link.request("POST", "/v1/completions", json.dumps(asked), headers)
        assert link.getresponse().status == 200
        until(lambda: EngineBoot.objects.filter(completion_tokens__gt=before + 20).exists())
        os.kill(cast(int, Replica.objects.get().pid), signal.SIGKILL)
        link.close()
        broken = msgspec.structs.replace(
            end(begun.request_id, state="engine_error", tokens=(3, 0, 2)),
            replica_id=ReplicaId(row.id),
            tokens_source="streamed",
        )
        books.wal.append(broken)
        until(lambda: EngineBoot.objects.count() == 2)
        until(lambda: Replica.objects.filter(state="ready", generation=2).exists())
        boot.refresh_from_db()
        stop(deployment)
        until(in_state("stopped", 1))
    assert boot.end == "killed"
    assert boot.counted_at is not None and boot.ended_at is not None
    assert (boot.ended_at - boot.counted_at).total_seconds() <= 5
    found = books.judge(boot)
    assert found.state == "lost" and not UsageRecord.objects.filter(purpose="lost").exists(), "rows may still come"
    EngineBoot.objects.filter(id=boot.id).update(ended_at=boot.ended_at - SETTLE)
    found = books.judge(boot)
    assert found.state == "lost" and found.lost_tokens > 0
    lost = UsageRecord.objects.get(purpose="lost")
    assert (lost.amount_pico, lost.tenant_id) == (0, fleet.revision.model.owner_id)
    usage = BootUsage.objects.filter(generation=1)
    assert sum(each.completion_tokens + each.cut_completion_tokens for each in usage) == boot.completion_tokens
    second = EngineBoot.objects.get(generation=2)
    assert (second.end, BootResult.objects.get(boot=second).state) == ("orderly", "equal")


def test_a_boot_goes_on_counting_after_a_time_without_an_agent(fleet: Fleet, data_dir: Path, books: Books) -> None:
    deployment = deploy(fleet)
    with agent_thread(data_dir, open_log("agent")):
        (row,) = until(in_state("ready", 1))
    for _ in range(3):
        serve(books, row, {"max_tokens": 20})
    with agent_thread(data_dir, open_log("agent")):
        until(lambda: EngineBoot.objects.filter(completion_tokens__gte=60).exists())
        stop(deployment)
        until(in_state("stopped", 1))
    boot = EngineBoot.objects.get()
    assert (boot.end, boot.whole) == ("orderly", True)
    assert books.judge(boot).state == "equal"


def test_an_engine_that_ended_while_no_agent_ran_was_killed(fleet: Fleet, data_dir: Path, books: Books) -> None:
    deploy(fleet)
    with agent_thread(data_dir, open_log("agent")):
        (row,) = until(in_state("ready", 1))
        until(lambda: EngineBoot.objects.filter(finished_sequences__gt=0).exists())
    serve(books, row, {"max_tokens": 20})
    os.kill(cast(int, Replica.objects.get().pid), signal.SIGKILL)
    with agent_thread(data_dir, open_log("agent")):
        until(lambda: EngineBoot.objects.filter(end="killed").exists())
    boot = EngineBoot.objects.get(generation=1)
    found = books.judge(boot)
    assert (found.state, found.lost_tokens) == ("equal", 0), "its last request ended after the last scrape"


@pytest.mark.parametrize("cached", [None, 3])
def test_counters_that_do_not_change_are_not_written_at_each_scrape(fleet: Fleet, cached: int | None) -> None:
    row = reconciler.reserve(fleet.deploy(1), fleet.node.id)
    assert row is not None
    counters = EngineCounters(prompt_tokens=9, cached_prompt_tokens=cached, completion_tokens=4, finished_sequences=1)
    load = EngineLoad(
        running=0, waiting=0, kv_usage=0.0, tokens=0, cache_tokens=None, max_requests=None, counters=counters
    )

    def written(load: EngineLoad) -> dt.datetime:
        boot_rows.count(row.id, 1, load)
        at = EngineBoot.objects.get().counted_at
        assert at is not None
        return at

    boot_rows.begin(row.id, 1)
    first = written(load)
    assert written(load) == first
    second = written(dataclasses.replace(load, counters=dataclasses.replace(counters, completion_tokens=5)))
    assert second > first
    third = written(dataclasses.replace(load, running=1))
    assert third > second
    aged = third - boot_rows.UNCHANGED
    EngineBoot.objects.update(counted_at=aged)
    assert written(dataclasses.replace(load, running=1)) > third


def test_an_engine_of_an_earlier_release_is_counted_but_not_judged(fleet: Fleet, data_dir: Path, books: Books) -> None:
    deploy(fleet)
    with agent_thread(data_dir, open_log("agent")):
        until(in_state("ready", 1))
        EngineBoot.objects.all().delete()
        until(lambda: EngineBoot.objects.filter(whole=False, counted_at__isnull=False).exists())
    assert books.judge(EngineBoot.objects.get()).state == "partial"

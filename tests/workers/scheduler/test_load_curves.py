"""Targets learned from what engines count: real simulated engines of two speeds, and reconcile on real rows."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Iterable, Iterator

import aiohttp
import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from tenants.audit import SYSTEM
from tests.engines.replica import Client, Replica, running
from tests.workers.conftest import Fleet
from workers.agent.probes.http_probe import EngineCounters, parse_load
from workers.fleet import operations
from workers.fleet.operations import ScalingTarget
from workers.fleet.status import inventory
from workers.models import Deployment, EngineBoot, LoadCurve
from workers.models import Replica as ReplicaRow
from workers.scheduler import reconciler
from workers.scheduler.scaling import load_curves, target_learning
from workers.scheduler.scaling.load_curves import Seen, Window
from workers.scheduler.scaling.target_learning import Curve, Limits, Point
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

#: Of one request: a prompt and its longest completion.
PROMPT, COMPLETION = 50, 750
AUTO = ScalingTarget(target_tokens_per_replica=None, scale_up_delay_seconds=0.0, scale_down_delay_seconds=300.0)


async def counted(client: Client) -> EngineCounters:
    load = parse_load((await client.get("/metrics")).raw.decode())
    assert load is not None
    return load.counters


async def measure(client: Client, requests: int, windows: int) -> list[Point]:
    """Return what the engine computed in each of the ``windows`` while it had ``requests`` at once."""
    body = {"model": "tiny", "max_tokens": COMPLETION, "ignore_eos": True, "min_tokens": COMPLETION}

    async def keep_busy(number: int) -> None:
        while True:
            prompt = [number % 500 + 300, *range(301, 300 + PROMPT)]
            await client.post("/v1/completions", body | {"prompt": prompt, "cache_salt": f"{number}"})

    async with asyncio.TaskGroup() as group:
        busy = [group.create_task(keep_busy(number)) for number in range(requests)]
        await asyncio.sleep(0.3)
        found = []
        for _ in range(windows):
            before, began = await counted(client), time.monotonic()
            await asyncio.sleep(0.8)
            after, ended = await counted(client), time.monotonic()
            rate = (after.completion_tokens - before.completion_tokens) / (ended - began)
            found.append(Point(tokens=requests * (PROMPT + COMPLETION), rate=rate, at=time.time()))
        for task in busy:
            task.cancel()
    return found


async def learn(replica: Replica) -> int:
    """Return the target that an engine's own rates at rising loads lead to."""
    curve: Curve = ()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = Client(replica, session)
        for requests in (1, 2, 4, 8, 16):
            for window in await measure(client, requests, target_learning.TRUSTED_WINDOWS):
                curve = target_learning.with_window(curve, window)
    found = target_learning.lesson(curve, 16_384, Limits()).tokens
    assert found is not None, curve
    return found


async def learn_both(replicas: Iterable[Replica]) -> list[int]:
    return await asyncio.gather(*map(learn, replicas))


@pytest.mark.long
@pytest.mark.timeout(120)
def test_engines_of_two_speeds_end_with_two_targets() -> None:
    """The slow one computes one request at once, the fast one eight; further ones wait."""
    slowly = ("--decode-tokens-per-second", "40", "--max-num-seqs")
    with (
        running("simulated", *slowly, "1", engine_args=()) as slow,
        running("simulated", *slowly, "8", engine_args=()) as fast,
    ):
        targets = asyncio.run(learn_both((slow, fast)))
    assert targets[0] == PROMPT + COMPLETION
    assert targets[1] >= 4 * targets[0]


def seen(counted_tokens: int, at: float, **changes: object) -> Seen:
    values: dict[str, object] = {"replicas": 2, "tokens": 500.0, "boots": "a", "ttft_seconds": 0.5} | changes
    return Seen(counted=counted_tokens, at=at, **values)  # type: ignore[arg-type]


def test_a_window_measures_the_mean_load_and_the_rate_of_one_replica() -> None:
    window, point = load_curves.advanced(None, seen(1000, 100.0))
    for counted_tokens, at, tokens in ((2000, 110.0, 400.0), (5000, 120.0, 600.0)):
        window, point = load_curves.advanced(window, seen(counted_tokens, at, tokens=tokens))
    assert point == Point(tokens=500.0, rate=100.0, ttft_seconds=0.5, at=120.0)
    assert window == Window(began=120.0, counted=5000, boots="a")


def test_a_window_begins_again_with_other_processes() -> None:
    window, _ = load_curves.advanced(None, seen(1000, 100.0))
    for other in (seen(9000, 121.0, boots="b"), seen(10, 121.0)):
        assert load_curves.advanced(window, other)[1] is None


@pytest.fixture(name="chat")
def _chat(fleet: Fleet) -> Iterator[Deployment]:
    """A deployment of up to 4 replicas that learns its target, with one replica whose process runs."""
    row = fleet.deploy(1)
    Deployment.objects.filter(id=row.id).update(max_replicas=4, scale_up_delay_seconds=0.0)
    reconciler.tick()
    ReplicaRow.objects.update(state="ready", host="127.0.0.1", port=4711, generation=1, running_requests=4)
    EngineBoot.objects.create(replica=ReplicaRow.objects.get(), generation=1, counted_at=Now())
    ReplicaRow.objects.update(observed_at=Now())
    row.refresh_from_db()
    yield row


def run_at(row: Deployment, tokens: int, rate: float, *, windows: int = 4, age_moves: bool = True) -> None:
    """Measure ``windows`` at one load, as a machine of that rate counts them."""
    half = target_learning.WINDOW_SECONDS / 2
    row.refresh_from_db()
    load = {row.id: DeploymentLoad(in_flight_requests=4, in_flight_tokens=tokens)}
    now = ReplicaRow.objects.get().observed_at
    assert now is not None
    for _ in range(windows * 2 + 1):
        load_curves.renew([row], load, now)
        now += dt.timedelta(seconds=half)
        ReplicaRow.objects.update(observed_at=now)
        EngineBoot.objects.update(counted_at=now, completion_tokens=F("completion_tokens") + round(rate * half))
        if age_moves:
            LoadCurve.objects.exclude(moved_at=None).update(moved_at=F("moved_at") - dt.timedelta(minutes=2))


def scaled(row: Deployment, tokens: int) -> int:
    """Return how many replicas reconcile desires at a load."""
    gateway_load.report("g1", {row.id: DeploymentLoad(in_flight_requests=4, in_flight_tokens=tokens)})
    reconciler.tick()
    row.refresh_from_db()
    return row.desired_replicas


@pytest.mark.django_db
def test_reconcile_learns_that_a_machine_is_slow_and_scales_by_it(chat: Deployment) -> None:
    assert inventory.read().deployments[0].target_words == "16,384"
    for tokens in (500, 1000, 2000):  # its rate does not rise: 500 tokens are enough
        run_at(chat, tokens, 40.0, windows=6)
    (status,) = inventory.read().deployments[0].targets
    assert (status.origin, status.tokens < 3000) == ("learned", True), status
    assert status.reason.startswith("40 tokens/s at 500 tokens in flight, and more load adds little: 40")
    run_at(chat, 500, 40.0, windows=30)
    assert LoadCurve.objects.get().target_tokens == pytest.approx(500, rel=0.12)
    assert scaled(chat, 1900) == 4  # one by the default of 16,384


@pytest.mark.django_db
def test_a_target_that_somebody_sets_wins_and_is_learned_again_on_demand(chat: Deployment) -> None:
    for tokens in (500, 1000, 2000):
        run_at(chat, tokens, 40.0)
    operations.set_target(
        SYSTEM,
        "chat",
        ScalingTarget(target_tokens_per_replica=9000, scale_up_delay_seconds=0.0, scale_down_delay_seconds=300.0),
    )
    measured = LoadCurve.objects.get().points
    run_at(chat, 4000, 40.0)
    assert LoadCurve.objects.get().points == measured
    found = inventory.read().deployments[0]
    assert (found.target_words, found.targets[0].origin) == ("9,000", "set")
    assert scaled(chat, 4000) == 1
    effect = operations.set_target(SYSTEM, "chat", AUTO)
    assert effect.now == "targets a learned number of tokens per replica, up after 0 s, down after 300 s"
    assert inventory.read().deployments[0].target_words.endswith("learned")


@pytest.mark.django_db
def test_a_target_moves_once_a_minute(chat: Deployment) -> None:
    run_at(chat, 500, 40.0)
    run_at(chat, 1000, 40.0, windows=target_learning.TRUSTED_WINDOWS + 1, age_moves=False)
    assert LoadCurve.objects.get().target_tokens == round(16_384 / target_learning.STEP)


@pytest.mark.django_db
def test_a_new_revision_begins_with_the_target_of_the_one_before(chat: Deployment, fleet: Fleet) -> None:
    LoadCurve.objects.create(deployment=chat, revision=fleet.revision, pool=fleet.pool, target_tokens=700)
    fleet.revision.pk = None
    fleet.revision.id = type(fleet.revision)._meta.pk.get_default()
    fleet.revision.digest, fleet.revision.superseded_at = "1" * 64, timezone.now()
    fleet.revision.save(force_insert=True)
    Deployment.objects.filter(id=chat.id).update(revision=fleet.revision)
    (status,) = inventory.read().deployments[0].targets
    assert (status.tokens, status.origin) == (700, "learned")

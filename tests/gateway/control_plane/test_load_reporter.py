"""What a gateway has in flight and holds is known to the fleet, which is woken when a first request waits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import orjson
import pytest
from django.db import connection
from redis.asyncio import Redis

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from catalogue.registry import Catalogue
from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.load_reporter import LoadReporter, process_name
from gateway.control_plane.snapshot_feed import ControlSnapshot
from tenants.snapshot.snapshot import Snapshot
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.scripted_app import CHUNKS, events, streaming
from tests.gateway.fixtures.tenants import HELLO, STREAMED, Gateway, World, in_database, until
from workers.models import GatewayLoad
from workers.serving import gateway_load, startup_eta
from workers.serving.gateway_load import DeploymentLoad

QUEUE = "hearth.celery.control"


@pytest.fixture
async def queue(gateway: Gateway) -> AsyncIterator[Redis]:
    """The broker, with nothing left of earlier tests on the queue of control."""
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await redis.delete(QUEUE)
        yield redis


async def demanded(gateway: Gateway, wanted: Callable[[DeploymentLoad], bool]) -> DeploymentLoad:
    """Return what the fleet knows of the deployment's load, once it is as wanted."""
    deployment = gateway.world.deployment.id
    while True:
        load = (await in_database(gateway_load.demand)).get(deployment, DeploymentLoad())
        if wanted(load):
            return load
        await asyncio.sleep(0.05)


def deployed() -> ControlSnapshot:
    """Return what a gateway knows of deployments, and nothing else."""
    return ControlSnapshot(
        callers=Snapshot(epoch=1, keys={}),
        catalogue=Catalogue(models={}),
        endpoints={},
        deployments=startup_eta.deployed(),
        etas={},
    )


async def test_what_is_in_flight_is_reported_until_it_has_landed(gateway: Gateway) -> None:
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), then_wait=True))
    exchanges = [gateway.exchange({**STREAMED, "temperature": 1}) for _ in range(3)]
    sent = [asyncio.ensure_future(exchange.run()) for exchange in exchanges]
    async with asyncio.timeout(30):
        load = await demanded(gateway, lambda load: load.in_flight_requests == 3)
        assert load.in_flight_tokens == sum(gateway.loads())
        assert load.queued_requests == 0
        for exchange in exchanges:
            exchange.disconnect.set()
        await asyncio.gather(*sent)
        assert await demanded(gateway, lambda load: load.in_flight_requests == 0) == DeploymentLoad()


async def test_the_first_held_request_is_reported_and_wakes_control(gateway: Gateway, queue: Redis) -> None:
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    sent = [asyncio.ensure_future(gateway.ask({**HELLO, "temperature": 1})) for _ in range(3)]
    async with asyncio.timeout(30):
        load = await demanded(gateway, lambda load: load.queued_requests == 3)
        popped = await queue.brpop([QUEUE])
    assert load.queued_tokens > 0
    assert (load.in_flight_requests, load.in_flight_tokens) == (0, 0)
    assert popped is not None
    headers = orjson.loads(popped[1])["headers"]
    assert headers["task"] == "workers.tasks.reconcile"
    assert headers["expires"]
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
    assert {(await one).status for one in sent} == {200}


async def test_reports_that_cannot_be_written_disturb_nobody(gateway: Gateway) -> None:
    def refuse(refused: bool) -> None:
        with connection.cursor() as cursor:
            change = "ADD CONSTRAINT nobody CHECK (false) NOT VALID" if refused else "DROP CONSTRAINT nobody"
            cursor.execute(f"ALTER TABLE workers_gatewayload {change}")

    await in_database(lambda: refuse(True))
    try:
        await in_database(GatewayLoad.objects.all().delete)
        await in_database(tenants.stop_replicas)
        await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
        held = asyncio.ensure_future(gateway.ask())
        await until(lambda: gateway.held() == 1)
        await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
        assert (await held).status == 200
        assert not await in_database(GatewayLoad.objects.exists)
    finally:
        await in_database(lambda: refuse(False))


def test_two_gateways_whose_containers_have_one_name_and_pid_are_two() -> None:
    names = {process_name("gateway", "node-1") for _ in range(2)}
    assert len(names) == 2 and all(name.startswith("gateway/") and name.endswith("@node-1") for name in names)


@pytest.mark.django_db
def test_a_report_is_written_when_it_has_news_and_a_wake_is_asked_for_once(two_tenants: World) -> None:
    in_flight = InFlight()
    pokes: list[None] = []
    reporter = LoadReporter("gateway/1@here", in_flight, wake=lambda: pokes.append(None))
    view = deployed()
    reporter.report_if_due(view)
    assert gateway_load.demand() == {two_tenants.deployment.id: DeploymentLoad()}
    with in_flight.queued("demo", 40):
        reporter.report_if_due(view)
        with in_flight.queued("demo", 50):
            reporter.report_if_due(view)
        assert (len(pokes), gateway_load.demand()) == (
            1,
            {two_tenants.deployment.id: DeploymentLoad(queued_requests=1, queued_tokens=40)},
        )


@pytest.mark.django_db
def test_a_request_that_came_and_went_between_two_reports_is_known(two_tenants: World) -> None:
    in_flight = InFlight()
    reporter = LoadReporter("gateway/1@here", in_flight, wake=lambda: None)
    view = deployed()
    in_flight.start("demo", 40)
    in_flight.finish("demo", 40)
    reporter.report_if_due(view)
    assert gateway_load.demand() == {two_tenants.deployment.id: DeploymentLoad()}
    assert set(gateway_load.busy_at()) == {two_tenants.deployment.id}

"""Who calls and what answers, for tests of the whole journey in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.db import connections

from billing import wal_reader
from billing.records import End, Progress, Record, Start
from billing.wal_format import segments
from catalogue import registry as catalogue
from catalogue.models import ModelRevision
from catalogue.registry import Description
from gateway import runtime, views
from gateway.app import GatewayApp
from gateway.hold import Hold
from gateway.pipeline import Pipeline
from gateway.runtime import Runtime
from tenants import registry
from tenants.registry import Policy
from tests.gateway.asgi import App, Exchange
from tests.gateway.engines import Say, ScriptedEngine
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer
from workers import endpoints
from workers.models import Deployment, Replica

MAX_BODY_BYTES = 4 << 20
BODY_TIMEOUT_SECONDS = 1.5
SEND_TIMEOUT_SECONDS = 1.0
MODEL = "demo"
HELLO: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
STREAMED = {**HELLO, "stream": True}
WITH_USAGE = {**STREAMED, "stream_options": {"include_usage": True}}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """``globex`` is the stranger of every test about ``acme``."""

    acme: Customer
    globex: Customer
    revision: ModelRevision
    deployment: Deployment
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A running gateway, its tenants and its engines."""

    world: World
    runtime: Runtime
    engines: tuple[ScriptedEngine, ...]
    wal: Path
    app: App

    async def ask(self, body: Any = None, *, key: str | None = None, headers: Any = None, **how: Any) -> Exchange:
        """Send one request, as acme unless a key is given."""
        return await self.exchange(body, key=key, headers=headers, **how).run()

    def exchange(self, body: Any = None, *, key: str | None = None, headers: Any = None, **how: Any) -> Exchange:
        """Prepare one request."""
        raw = body if isinstance(body, bytes) else orjson.dumps(HELLO if body is None else body)
        bearer = self.world.acme.secret if key is None else key
        sent = {"host": "127.0.0.1", "authorization": f"Bearer {bearer}", **(headers or {})}
        return Exchange(self.app, headers=sent, **{"pieces": (raw,), **how})

    def records(self) -> list[Record]:
        """Return what the usage log holds, in order."""
        found = []
        for segment in segments(self.wal):
            for item in wal_reader.read(segment, 0, final=False):
                assert isinstance(item, wal_reader.Found)
                found.append(item.record)
        return found

    def starts(self) -> list[Start]:
        """Return the STARTs."""
        return [record for record in self.records() if isinstance(record, Start)]

    def ends(self) -> list[End]:
        """Return the ENDs."""
        return [record for record in self.records() if isinstance(record, End)]

    def progress(self) -> list[Progress]:
        """Return the PROGRESS records."""
        return [record for record in self.records() if isinstance(record, Progress)]

    def let_all_say(self, say: Say) -> None:
        """Let every engine say this."""
        for engine in self.engines:
            engine.say = say

    def bodies(self) -> list[dict[str, Any]]:
        """Return what the engines were asked."""
        return [body for engine in self.engines for body in engine.bodies]

    def limit_hold(self, **changes: Any) -> None:
        """Change how long, how often told and how many requests are held."""
        self._hold.limits = replace(self._hold.limits, **changes)

    def held(self) -> int:
        """Return how many requests wait for a replica."""
        return sum(room.requests for room in self._hold._rooms.values())

    async def idle(self) -> None:
        """Wait until nothing is held or in flight: through Django, a load is given back after its client's end."""
        await until(lambda: not self.held() and not any(self.loads()))

    @property
    def _hold(self) -> Hold:
        return self.runtime.pipeline._parts.hold

    def loads(self) -> list[int]:
        """Return the tokens in flight on each replica, as routing counts them."""
        router = self.runtime.pipeline._parts.dispatcher._router
        return [router.loads.tokens(replica.id) for replica in self.world.replicas]


def build() -> World:
    """Create two tenants with keys, a public model, and two replicas of it that no engine runs yet."""
    acme, globex = customers.create("acme"), customers.create("globex")
    revision = catalogue.register(
        OPERATOR,
        registry.create_tenant(OPERATOR, slug="platform", name="Platform", policy=Policy(cache_mode="off")),
        Description(name=MODEL, source="/models/demo", engine="simulated", context_length_tokens=2048, public=True),
    )
    deployment = Deployment.objects.create(name="demo", revision=revision, desired_replicas=2, max_replicas=2)
    replicas = tuple(Replica.objects.create(deployment=deployment, revision=revision) for _ in range(2))
    return World(acme=acme, globex=globex, revision=revision, deployment=deployment, replicas=replicas)


def place(world: World, ports: Sequence[int]) -> None:
    """Say that each replica runs on its port."""
    for replica, port in zip(world.replicas, ports, strict=True):
        Replica.objects.filter(id=replica.id).update(
            state=Replica.State.READY, host="127.0.0.1", port=port, generation=1
        )
    endpoints.announce()
    connections.close_all()


def stop_replicas(maximum: int = 2) -> None:
    """Say that no replica runs any more, and how many ever may."""
    Replica.objects.update(state=Replica.State.STOPPED)
    Deployment.objects.update(desired_replicas=min(1, maximum), min_replicas=0, max_replicas=maximum)
    endpoints.announce()


@asynccontextmanager
async def raw_door(world: World, engines: tuple[ScriptedEngine, ...], wal: Path) -> AsyncIterator[Gateway]:
    """Run the raw ASGI application for as long as the block lasts."""
    started = runtime.start("test")
    try:
        await started.feed.ready()
        app = GatewayApp(
            lambda: started.pipeline,
            max_body_bytes=MAX_BODY_BYTES,
            body_timeout_seconds=BODY_TIMEOUT_SECONDS,
            send_timeout_seconds=SEND_TIMEOUT_SECONDS,
        )
        yield Gateway(world=world, runtime=started, engines=engines, wal=wal, app=app)
    finally:
        await started.close()


@asynccontextmanager
async def view_door(world: World, engines: tuple[ScriptedEngine, ...], wal: Path) -> AsyncIterator[Gateway]:
    """Run the same journey behind Django's handler and middleware."""
    try:
        found = await asyncio.wrap_future(views.background.run(_runtime_of_the_view))
        yield Gateway(world=world, runtime=found, engines=engines, wal=wal, app=ASGIHandler())
    finally:
        await asyncio.to_thread(views.background.close)


async def _runtime_of_the_view() -> Runtime:
    async def nothing(pipeline: Pipeline) -> None:
        """Wait until the pipeline is there."""

    await views.background._with_pipeline(nothing)
    assert views.background._runtime is not None
    return views.background._runtime


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for the condition. Raises TimeoutError."""
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def in_database(work: Callable[[], T]) -> T:
    """Run database work in a thread, and leave no connection behind."""

    def run() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


#: The two ways in, for ``pytest.mark.parametrize("gateway", …, indirect=True)``.
DOORS = [pytest.param(raw_door, id="raw"), pytest.param(view_door, id="view")]

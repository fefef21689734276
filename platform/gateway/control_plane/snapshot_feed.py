"""The control plane in memory: callers, models, prices and ready replicas, so that no request reads the database.

A thread listens to PostgreSQL and also polls every POLL_SECONDS in case a notification is lost; it replaces one
immutable snapshot by the next. While PostgreSQL is unavailable the last snapshot stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection
from django.db.utils import Error as DjangoError

from billing.pricing import prices
from billing.pricing.prices import PriceTable
from catalogue import registry
from catalogue.registry import Catalogue, ServedModel
from gateway import errors
from gateway.control_plane.model_contexts import ModelContexts
from gateway.errors import Unavailable
from tenants import policy_epoch
from tenants.errors import KeyRefused
from tenants.ids import RevisionId
from tenants.policy_epoch import Changes
from tenants.snapshot import snapshot
from tenants.snapshot.snapshot import Caller, Snapshot
from tenants.snapshot.snapshot_sweep import SnapshotSweep
from workers.serving import endpoints, gateway_load, startup_eta
from workers.serving.endpoints import Endpoint
from workers.serving.model_facts import states
from workers.serving.model_facts.states import ModelState, Starts
from workers.serving.startup_eta import Deployed

log = logging.getLogger(__name__)

#: psycopg's errors come from waiting for notifications, which does not go through Django.
DATABASE_ERRORS = (DjangoError, psycopg.Error, OSError)
#: With notifications only a safety net; without them a revoked key is still rejected within a second.
POLL_SECONDS = 0.5
#: A safety net: models and prices that were written without a policy epoch.
MODELS_SECONDS = 600.0
#: Medians of many starts change slowly, and so does the list of gateways.
ETA_SECONDS = 5.0
#: Callers that continue at once after a poll: each unknown key waits for one, and its refusal takes 0.5 ms.
RESUMED_AT_ONCE = 8
CHANNELS = (policy_epoch.CHANNEL, endpoints.CHANNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSnapshot:
    """The control plane at one moment. ``endpoints`` is by model name, ``etas`` by deployment, seconds.

    The models of ``catalogue`` have the contexts of their engines (:mod:`gateway.control_plane.model_contexts`).

    ``gateways`` are the names of the running gateway processes, from their reports.
    """

    callers: Snapshot
    catalogue: Catalogue
    endpoints: Mapping[str, tuple[Endpoint, ...]]
    deployments: tuple[Deployed, ...]
    etas: Mapping[UUID, float]
    #: When starts that are under way were decided, by deployment (``workers.serving.model_facts.states``).
    starting: Mapping[UUID, dt.datetime | None] = field(default_factory=dict)
    prices: PriceTable = field(default_factory=lambda: PriceTable(()))
    gateways: tuple[str, ...] = ()
    #: Adapters that no replica of their base could load, with the time of the next attempt.
    refused_adapters: Mapping[str, dt.datetime | None] = field(default_factory=dict)
    #: Memoised values of :meth:`endpoints_in`.
    _endpoints_in: dict[tuple[str, frozenset[str]], tuple[Endpoint, ...]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def endpoints_in(self, model_name: str, regions: frozenset[str]) -> tuple[Endpoint, ...]:
        """Return the endpoints of a model in these regions, or in all regions if ``regions`` is empty."""
        every = self.endpoints.get(model_name, ())
        if not regions:
            return every
        found = self._endpoints_in.get((model_name, regions))
        if found is None:
            found = self._endpoints_in[model_name, regions] = tuple(each for each in every if each.region in regions)
        return found

    def require_loadable(self, model: ServedModel) -> None:
        """Raise Unavailable for an adapter that every ready replica of its base refuses: waiting would not help."""
        if model.base and model.name in self.refused_adapters and not self.endpoints.get(model.name):
            at = self.refused_adapters[model.name]
            left = None if at is None else max(1.0, (at - dt.datetime.now(dt.UTC)).total_seconds())
            raise errors.adapter_not_loaded(model.name, left)

    def startable_deployment(self, model: ServedModel, regions: frozenset[str] = frozenset()) -> Deployed | None:
        """Return a deployment that may start a replica of the model, that of the active revision first.

        ``regions``: it has a pool in one of these; empty: anywhere.
        """
        return startup_eta.startable(self.deployments, model, regions)

    def state_of(self, model: ServedModel, regions: frozenset[str]) -> ModelState:
        """Return whether a model answers requests of a tenant with these regions now, starts, or sleeps."""
        return states.state_of(
            model,
            is_ready=bool(self.endpoints_in(model.name, regions)),
            starts=Starts(deployments=self.deployments, etas=self.etas, starting=self.starting),
            regions=regions,
            now=dt.datetime.now(dt.UTC),
        )


class SnapshotFeed:
    """Keeps the current snapshot. Both callbacks run in the feed's thread: ``on_change(old, new)`` when the snapshot
    is replaced, ``on_poll(snapshot)`` after each poll, a few times a second.
    """

    def __init__(
        self,
        on_change: Callable[[ControlSnapshot | None, ControlSnapshot], None] = lambda old, new: None,
        on_poll: Callable[[ControlSnapshot], None] = lambda snapshot: None,
    ) -> None:
        self._on_change = on_change
        self._on_poll = on_poll
        self._etas: Mapping[UUID, float] = {}
        self._starting: Mapping[UUID, dt.datetime | None] = {}
        self._gateways: tuple[str, ...] = ()
        self._catalogue = Catalogue(models={})
        self._contexts = ModelContexts()
        self._last_contexts: Mapping[RevisionId, int] = {}
        self._etas_until = 0.0
        self._models_until = 0.0
        #: Changes of models and prices up to this policy epoch are in the snapshot.
        self._models_epoch = 0
        self._sweep = SnapshotSweep()
        self._snapshot: ControlSnapshot | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        #: Callers that wait for the end of a poll, in order.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._healthy = True
        self._healthy_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Start the thread; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the last snapshot stays readable."""
        self._stop.set()
        self._thread.join(timeout=2 * POLL_SECONDS + 1)

    async def ready(self) -> None:
        """Wait until the first snapshot is loaded, or the database has not replied in time."""
        while self._snapshot is None:
            await self._next_poll()
            if not self._healthy:
                return

    @property
    def snapshot(self) -> ControlSnapshot:
        """Return the current snapshot. Raises Unavailable until the first one is loaded."""
        if self._snapshot is None:
            raise Unavailable("Hearth is starting and has not read its database yet. Retry shortly.", "starting")
        return self._snapshot

    @property
    def age_seconds(self) -> float | None:
        """Time since the database last replied; None before the first snapshot."""
        return None if self._healthy_at is None else time.monotonic() - self._healthy_at

    async def authenticate(self, text: str) -> Caller:
        """Return the caller of a key; wait up to two polls for a key newer than the snapshot.

        Raises KeyRefused; Unavailable if the key is unknown and the database cannot be read.
        """
        try:
            return self.snapshot.callers.authenticate(text)
        except KeyRefused as refusal:
            if refusal.reason != "unknown" or self.snapshot.callers.knows(text):
                raise
        await self.refresh()
        if not self._healthy:
            raise Unavailable(
                "This API key cannot be verified, because the database is unavailable. Retry shortly.",
                "key_unverifiable",
            )
        return self.snapshot.callers.authenticate(text)

    async def refresh(self) -> None:
        """Wait until the snapshot is newer than this call, or the database does not reply.

        That takes two polls: the one under way may have begun before.
        """
        for _ in range(2):
            await self._next_poll()

    async def _next_poll(self) -> None:
        polled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting[polled] = None
        try:
            async with asyncio.timeout(4 * POLL_SECONDS):
                await polled
        except TimeoutError:
            self._healthy = False
        finally:
            # While the database hangs no poll ends, but callers come and go.
            with self._lock:
                self._waiting.pop(polled, None)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except DATABASE_ERRORS as error:
                if self._healthy:
                    log.warning("the database is unavailable, the last snapshot stays in force: %s", error)
            except Exception:
                # The thread must go on after any error: without it no key would be revoked.
                log.exception("the database cannot be read, the last snapshot stays in force")
            self._poll_ended(healthy=False)
            connection.close()
            self._stop.wait(POLL_SECONDS)

    def _follow(self) -> None:
        connection.close()
        with connection.cursor() as cursor:
            for channel in CHANNELS:
                cursor.execute(f"LISTEN {channel}")
        while not self._stop.is_set():
            self._poll()
            self._poll_ended(healthy=True)
            raw: Any = connection.connection
            for _ in raw.notifies(timeout=POLL_SECONDS / 2, stop_after=1):
                pass

    def _poll(self) -> None:
        old = self._snapshot
        new = self._read(old)
        if new != old:
            self._snapshot = new
            self._on_change(old, new)
        self._on_poll(new)

    def _read(self, old: ControlSnapshot | None) -> ControlSnapshot:
        """Read the database; of callers, models and prices only what has changed."""
        # Since the models were read, which may be longer than since the callers were: these follow changes that come
        # while they are read, and a change of a model among them would otherwise be missed.
        changes = None if old is None else policy_epoch.changes_since(self._models_epoch)
        as_of = policy_epoch.current() if changes is None else changes.epoch
        # Models first: between the two reads a model may get another name, and budgets know its earlier ones alone.
        price_table = self._models(old, changes)
        callers = self._callers(old, changes)
        if time.monotonic() >= self._etas_until:
            self._etas = startup_eta.etas()
            self._starting = states.starting()
            self._gateways = gateway_load.gateways()
            self._last_contexts = endpoints.last_contexts()
            self._etas_until = time.monotonic() + ETA_SECONDS
        ready: dict[str, tuple[Endpoint, ...]] = {}
        serving = endpoints.ready()
        for endpoint in (*serving, *endpoints.of_adapters(serving, endpoints.loaded_adapters())):
            ready[endpoint.model_name] = (*ready.get(endpoint.model_name, ()), endpoint)
        self._models_epoch = as_of  # last: after a failed read, the models are read again with their prices
        return ControlSnapshot(
            callers=callers,
            catalogue=self._contexts.apply(self._catalogue, ready, self._last_contexts),
            prices=price_table,
            endpoints=ready,
            deployments=startup_eta.deployed(),
            etas=self._etas,
            starting=self._starting,
            gateways=self._gateways,
            refused_adapters=endpoints.refused_adapters(),
        )

    def _callers(self, old: ControlSnapshot | None, changes: Changes | None) -> Snapshot:
        if old is None or changes is None:
            return snapshot.load()
        return self._sweep.step(old.callers.refreshed(changes))

    def _models(self, old: ControlSnapshot | None, changes: Changes | None) -> PriceTable:
        """Read the models and return the prices, both only if they may have changed."""
        same = changes is not None and changes.complete and not changes.models
        if old is not None and same and time.monotonic() < self._models_until:
            return old.prices
        self._models_until = time.monotonic() + MODELS_SECONDS
        self._catalogue = registry.load()
        return prices.load()

    def _poll_ended(self, *, healthy: bool) -> None:
        with self._lock:
            self._healthy = healthy
            self._healthy_at = time.monotonic() if healthy else self._healthy_at
            waiting, self._waiting = self._waiting, {}
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for polled in waiting:
            by_loop.setdefault(polled.get_loop(), []).append(polled)
        for loop, callers in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_resume, loop, iter(callers))


def _resume(loop: asyncio.AbstractEventLoop, waiting: Iterator[asyncio.Future[None]]) -> None:
    """Let RESUMED_AT_ONCE callers continue, and the others after what else the loop has to do."""
    resumed = list(islice(waiting, RESUMED_AT_ONCE))
    for polled in resumed:
        if not polled.done():
            polled.set_result(None)
    if resumed:
        loop.call_soon(_resume, loop, waiting)

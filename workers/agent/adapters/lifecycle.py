"""Move the LoRA adapters of one replica one step: load, try and unload them, one at a time.

    wanted ─► loaded ─► unloaded        loaded ─► wanted, where the engine has been replaced
       └─► failed ─► loaded, after a delay

Calls run in threads of their own. A failure concerns the adapter alone: its replica goes on serving everything else.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from django.db.models.functions import Now

from tenants.ids import ReplicaId
from workers import tasks
from workers.agent.adapters import engine_calls
from workers.agent.adapters.adapter_rows import AdapterRow, AdapterRows
from workers.agent.adapters.engine_calls import CannotLoad
from workers.agent.probes.http_probe import Prober
from workers.agent.processes.engine import Engine
from workers.agent.timeouts import Timeouts, backoff_seconds
from workers.agent.wakeup import WakeEvent

log = logging.getLogger(__name__)

#: Counting of attempts ends here; the delay reached its cap long before.
MOST_ATTEMPTS = 1000


@dataclass(slots=True)
class _Call:
    """A call to an engine about one adapter. The thread that makes it sets ``done`` last."""

    row: AdapterRow
    does: Literal["load", "unload"]
    generation: int
    problem: str = ""
    done: bool = False


class AdapterLifecycle:
    """The adapters of one node's replicas. One thread calls it."""

    def __init__(self, rows: AdapterRows, prober: Prober, wake_event: WakeEvent, timeouts: Timeouts) -> None:
        self._rows = rows
        self._prober = prober
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._calls: dict[ReplicaId, _Call] = {}

    def step(self, engines: Collection[Engine]) -> None:
        """Write what calls have found, and make the next one of each engine that serves."""
        by_replica = self._rows.by_replica()
        known = {engine.record.replica_id: engine for engine in engines if engine.running}
        for replica_id in self._calls.keys() - known.keys():
            del self._calls[replica_id]
        for replica_id, engine in known.items():
            self._step(engine, by_replica.get(replica_id, ()))

    def _step(self, engine: Engine, rows: Sequence[AdapterRow]) -> None:
        call = self._calls.get(engine.record.replica_id)
        if call is not None:
            if not call.done:
                return
            del self._calls[engine.record.replica_id]
            self._finished(call, {row.load_id: row for row in rows})
            self._wake_event.set()
            return
        for row in rows:
            does = _next(row, engine.record.generation)
            if does is not None:
                self._begin(engine, row, does)
                return

    def _begin(self, engine: Engine, row: AdapterRow, does: Literal["load", "unload"]) -> None:
        call = _Call(row, does, engine.record.generation)
        self._calls[row.replica_id] = call
        threading.Thread(target=self._run, args=(engine, call), name="adapter", daemon=True).start()

    def _run(self, engine: Engine, call: _Call) -> None:
        row = call.row
        name = row.engine_name if call.does == "load" else row.loaded_as or row.engine_name
        target = replace(engine.target, model_name=row.model_name, engine_name=name, revision_id=row.revision_id)
        try:
            if call.does == "unload":
                engine_calls.unload(target)
            else:
                engine_calls.load(self._prober, target, Path(row.folder), row.weights_digest)
        except CannotLoad as error:
            call.problem = str(error)
        except Exception as error:
            log.exception("adapter %s on replica %s: the call failed", name, row.replica_id)
            call.problem = f"{type(error).__name__}: {error}"
        call.done = True
        self._wake_event.set()

    def _finished(self, call: _Call, rows: Mapping[object, AdapterRow]) -> None:
        row = rows.get(call.row.load_id)
        if row is None:  # nobody wants it any more, or its replica does not serve now: it is looked at again
            return
        facts: dict[str, Any] = {"generation": call.generation, "next_attempt_at": None, "error": "", "attempts": 0}
        if call.problem:
            self._failed(row, call.problem)
        elif call.does == "unload":
            self._rows.move(row, "unloaded", **facts)
            log.info("adapter %s unloaded from replica %s", row.loaded_as, row.replica_id)
        elif self._rows.move(
            row,
            "loaded",
            event=f"the adapter {row.model_name} is loaded, after {row.attempts} failures" if row.attempts else "",
            engine_name=call.row.engine_name,
            **facts,
        ):
            log.info("adapter %s loaded on replica %s", call.row.engine_name, row.replica_id)
        tasks.wake_control()  # a revision may have waited for it, and what is unloaded is forgotten

    def _failed(self, row: AdapterRow, why: str) -> None:
        attempts = min(row.attempts + 1, MOST_ATTEMPTS)
        delay = backoff_seconds(self._timeouts, attempts, random.random())
        log.warning("adapter %s on replica %s: %s; next attempt in %.0f s", row.engine_name, row.replica_id, why, delay)
        self._rows.move(
            row,
            "failed",
            event="" if why[:500] == row.error else f"the adapter {row.model_name} cannot be loaded: {why}",
            error=why[:500],
            attempts=attempts,
            next_attempt_at=Now() + dt.timedelta(seconds=delay),
        )


def _next(row: AdapterRow, generation: int) -> Literal["load", "unload"] | None:
    """Return what the engine of a generation is called for; None for nothing."""
    if not row.wanted:
        return "unload" if row.leaves and row.due and row.state != "unloaded" else None
    if row.state == "loaded" and row.generation == generation and row.loaded_as == row.engine_name:
        return None
    return "load" if row.due and row.folder else None

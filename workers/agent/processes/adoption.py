"""Adopt the processes that an earlier agent left on this node, and kill those without an owner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers import processes
from workers.agent.processes.engine import Engine, EngineProcesses
from workers.agent.processes.paths import LOG_PREFIXES, OWNER_VARIABLE, AgentPaths
from workers.agent.processes.zygote import Zygote, ZygoteProcesses
from workers.agent.store.placeholder_rows import PlaceholderRow
from workers.agent.store.replica_rows import ReplicaRow
from workers.processes import ProcessIdentity

log = logging.getLogger(__name__)

#: A zygote answers in microseconds unless it is stopped.
ZYGOTE_TIMEOUT_SECONDS = 1.0
KILL_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was adopted. ``mid_promotion`` pairs each engine whose promotion is unfinished with its zygote."""

    engines: tuple[Engine, ...]
    zygotes: tuple[Zygote, ...]
    mid_promotion: tuple[tuple[Engine, Zygote], ...]


def adopt(
    engines: EngineProcesses,
    zygotes: ZygoteProcesses,
    replicas: Iterable[ReplicaRow],
    placeholders: Iterable[PlaceholderRow],
) -> Adopted:
    """Return the engines and zygotes that still match their rows; remove the records of zygotes that were promoted.

    A process that is recorded both as a zygote and as an engine was being promoted when its agent ended. Call this
    before anything is started; afterwards :func:`sweep` kills the rest.
    """
    found_engines = {engine.record.process: engine for row in replicas if (engine := engines.adopt(row))}
    found_zygotes = [zygote for row in placeholders if (zygote := zygotes.adopt(row))]
    waiting, mid_promotion = [], []
    for zygote in found_zygotes:
        engine = found_engines.get(zygote.record.process)
        if engine is None:
            waiting.append(zygote)
        elif zygotes.ping(zygote.record, ZYGOTE_TIMEOUT_SECONDS) is not None:
            mid_promotion.append((engine, zygote))
            del found_engines[zygote.record.process]
        else:
            zygotes.forget(zygote.record)
    return Adopted(tuple(found_engines.values()), tuple(waiting), tuple(mid_promotion))


def sweep(paths: AgentPaths, keep: Iterable[ProcessIdentity]) -> int:
    """Kill every process of this agent that is not in a session led by one of ``keep``, and remove the records.

    Returns the number of killed sessions. A process is found by its record, by the marks in its environment, or by the
    log it writes to: vLLM's engine core overwrites its environment with its title, and its session leader may have
    ended. Sessions of other agents are not touched.
    """
    kept = {process.pid for process in keep}
    ended = 0
    for record in list(paths.registry.records()):
        if record.boot_id != paths.boot_id or (
            record.pid not in kept and not processes.session_members(record.process)
        ):
            paths.registry.forget(record.holder_id)
        elif record.pid not in kept and paths.end(record, timeout_seconds=KILL_TIMEOUT_SECONDS):
            log.warning("node %s: killed %s %s, which has no owner", paths.node, record.kind, record.pid)
            ended += 1
    for leader in _strays(paths):
        if leader.pid not in kept and processes.kill_session(leader, timeout_seconds=KILL_TIMEOUT_SECONDS):
            log.warning("node %s: killed session %s, which has no record", paths.node, leader.pid)
            ended += 1
    return ended


def _strays(paths: AgentPaths) -> Sequence[ProcessIdentity]:
    """Return the leaders of all sessions with a process of this agent, except those marked as another agent's."""
    owners = processes.find_by_environment(OWNER_VARIABLE)
    marked = {process for process, owner in owners.items() if owner == paths.owner}
    found = marked | (processes.find_by_output(paths.logs, LOG_PREFIXES) - owners.keys())
    foreign = {session.pid for process in owners.keys() - marked if (session := processes.session_of(process))}
    leaders = {session.pid: session for process in found if (session := processes.session_of(process))}
    return [leader for leader in leaders.values() if leader.pid not in foreign]

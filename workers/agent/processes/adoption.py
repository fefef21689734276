"""Take over what an earlier agent left on this node, and end what is nobody's."""

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
    """What goes on. ``mid_promotion`` are engines still to be made of the zygote beside them."""

    engines: tuple[Engine, ...]
    zygotes: tuple[Zygote, ...]
    mid_promotion: tuple[tuple[Engine, Zygote], ...]


def adopt(
    engines: EngineProcesses, zygotes: ZygoteProcesses, rows: Iterable[ReplicaRow], held: Iterable[PlaceholderRow]
) -> Adopted:
    """Return the engines and zygotes whose rows are still theirs; forget what has become something else.

    A process that is recorded both as a zygote and as an engine was being promoted when its agent died. Call it
    before anything is started; afterwards :func:`sweep` ends the rest.
    """
    found_engines = {engine.record.process: engine for row in rows if (engine := engines.adopt(row))}
    found_zygotes = [zygote for row in held if (zygote := zygotes.adopt(row))]
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
    """Kill, session by session, every process of this agent's that is not in a session ``keep`` leads; forget their
    records. Return how many sessions that were.

    A process is found by its record, by what marks its environment, or by the log it writes to: vLLM's engine core
    overwrites its environment with its title, and its leader may be gone. Sessions of another agent's are left alone.
    """
    kept = {process.pid for process in keep}
    ended = 0
    for record in list(paths.registry.records()):
        if record.boot_id != paths.boot_id or (
            record.pid not in kept and not processes.session_members(record.process)
        ):
            paths.registry.forget(record.holder_id)
        elif record.pid not in kept and paths.end(record, timeout_seconds=KILL_TIMEOUT_SECONDS):
            log.warning("node %s: ended %s %s, which is nobody's", paths.node, record.kind, record.pid)
            ended += 1
    for leader in _strays(paths):
        if leader.pid not in kept and processes.kill_session(leader, timeout_seconds=KILL_TIMEOUT_SECONDS):
            log.warning("node %s: killed session %s, which nobody knows", paths.node, leader.pid)
            ended += 1
    return ended


def _strays(paths: AgentPaths) -> Sequence[ProcessIdentity]:
    """Return the leaders of all sessions with a process of this agent's in it, but for those marked as another's."""
    owners = processes.find_by_environment(OWNER_VARIABLE)
    marked = {process for process, owner in owners.items() if owner == paths.owner}
    found = marked | (processes.find_by_output(paths.logs, LOG_PREFIXES) - owners.keys())
    foreign = {session.pid for process in owners.keys() - marked if (session := processes.session_of(process))}
    leaders = {session.pid: session for process in found if (session := processes.session_of(process))}
    return [leader for leader in leaders.values() if leader.pid not in foreign]

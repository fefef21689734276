"""One file per engine process on this node, so that the next agent finds what this one started.

The folder outlives every agent. ``hearth down`` reads it to end what is left; an agent that starts adopts the
engines in it or kills them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from tenants.ids import ReplicaId
from workers.processes import ProcessIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """Who an engine process is and whose. ``fence`` and ``generation`` are the replica's at its start."""

    replica_id: ReplicaId
    node: str
    fence: int
    generation: int
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    argv0: str

    @property
    def process(self) -> ProcessIdentity:
        """The process; compare ``boot_id`` first."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)


class Registry:
    """The records of one node's engines in one folder."""

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._node = node

    def write(self, record: EngineRecord) -> None:
        """Keep the record, atomically: a reader sees the old one or the new one, also after a crash."""
        path = self._path(record.replica_id)
        temporary = path.with_suffix(f".{os.getpid()}")
        document = asdict(record) | {"replica_id": str(record.replica_id)}
        with temporary.open("w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def forget(self, replica_id: ReplicaId) -> None:
        """Remove the record; there may be none."""
        self._path(replica_id).unlink(missing_ok=True)

    def records(self) -> Iterator[EngineRecord]:
        """Return this node's records, whether or not their processes live. An unreadable file is removed."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                record = _parse(json.loads(path.read_text()))
            except (ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            if record.node == self._node:
                yield record

    def _path(self, replica_id: ReplicaId) -> Path:
        return self.folder / f"{replica_id}.json"


def _parse(document: dict[str, Any]) -> EngineRecord:
    return EngineRecord(**(document | {"replica_id": cast(ReplicaId, UUID(document["replica_id"]))}))

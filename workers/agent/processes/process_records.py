"""One file per process on this node that outlives its agent, so that the next agent finds the process.

Engines, zygotes and fetches of weights share one folder. ``hearth down`` reads it to kill what is left; an agent that
starts adopts the processes in it or kills them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast
from uuid import UUID

from tenants.ids import ReplicaId
from workers.processes import ProcessIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """The identity of an engine process and its replica. ``fence`` and ``generation`` are the replica's at the start.

    ``devices`` are those it runs on. ``begun_at`` is when it was spawned or promoted, in seconds since boot.
    """

    replica_id: ReplicaId
    node: str
    fence: int
    generation: int
    pid: int
    start_ticks: int
    boot_id: str
    port: int
    devices: tuple[str, ...]
    begun_at: float
    #: Where its part of the replica's log begins.
    log_offset: int = 0
    kind: Literal["engine"] = "engine"

    @property
    def process(self) -> ProcessIdentity:
        """The process; compare ``boot_id`` first."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)

    @property
    def holder_id(self) -> UUID:
        """Whose process it is."""
        return self.replica_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteRecord:
    """The identity of a zygote and its placeholder. ``fence`` is the placeholder's at the start."""

    placeholder_id: UUID
    node: str
    fence: int
    pid: int
    start_ticks: int
    boot_id: str
    devices: tuple[str, ...]
    kind: Literal["placeholder"] = "placeholder"

    @property
    def process(self) -> ProcessIdentity:
        """The process; compare ``boot_id`` first."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)

    @property
    def holder_id(self) -> UUID:
        """Whose process it is."""
        return self.placeholder_id


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecord:
    """The identity of a process that fetches a model's files. It uses no device."""

    weights_id: UUID
    node: str
    source: str
    pid: int
    start_ticks: int
    boot_id: str
    devices: tuple[str, ...] = ()
    kind: Literal["weights"] = "weights"

    @property
    def process(self) -> ProcessIdentity:
        """The process; compare ``boot_id`` first."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)

    @property
    def holder_id(self) -> UUID:
        """Whose process it is."""
        return self.weights_id


Record = EngineRecord | ZygoteRecord | FetchRecord
KINDS = ("engine", "placeholder", "weights")


class ProcessRecords:
    """The records of one node's processes in one folder."""

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.node = node

    def write(self, record: Record) -> None:
        """Write the record atomically: a reader sees the old one or the new one, even after a crash."""
        path = self._path(record.holder_id)
        temporary = path.with_suffix(f".{os.getpid()}")
        with temporary.open("w") as file:
            json.dump(asdict(record), file, default=str)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def forget(self, holder_id: UUID) -> None:
        """Remove the record; there may be none."""
        self._path(holder_id).unlink(missing_ok=True)

    def engines(self) -> Iterator[EngineRecord]:
        """Return this node's engines, whether or not their processes live."""
        return (record for record in self.records() if isinstance(record, EngineRecord))

    def zygotes(self) -> Iterator[ZygoteRecord]:
        """Return this node's zygotes, whether or not their processes live."""
        return (record for record in self.records() if isinstance(record, ZygoteRecord))

    def fetches(self) -> Iterator[FetchRecord]:
        """Return this node's fetches, whether or not their processes live."""
        return (record for record in self.records() if isinstance(record, FetchRecord))

    def records(self) -> Iterator[Record]:
        """Return this node's records. An unreadable file is removed; its process is found by other marks."""
        return (record for record in self.all_nodes() if record.node == self.node)

    def all_nodes(self) -> Iterator[Record]:
        """Return the records of every node whose agent uses this folder."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                document = json.loads(path.read_text())
                if document.get("kind") in KINDS:
                    yield _parse(document)
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError):
                path.unlink(missing_ok=True)

    def _path(self, holder_id: UUID) -> Path:
        return self.folder / f"{holder_id}.json"


def _parse(document: dict[str, Any]) -> Record:
    document["devices"] = tuple(document["devices"])
    if document["kind"] == "placeholder":
        return ZygoteRecord(**(document | {"placeholder_id": UUID(document["placeholder_id"])}))
    if document["kind"] == "weights":
        return FetchRecord(**(document | {"weights_id": UUID(document["weights_id"])}))
    return EngineRecord(**(document | {"replica_id": cast(ReplicaId, UUID(document["replica_id"]))}))

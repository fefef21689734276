"""Where engines publish their KV events and where the relay answers: unix sockets in one private folder per node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

#: A longer path cannot be bound (``sun_path`` of unix(7), less its end).
MAX_PATH_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class EventAddress:
    """The ZMQ endpoints of one engine process: PUB with its events, ROUTER that repeats them."""

    events: str
    replay: str


def engine_address(folder: Path, replica_id: UUID, generation: int) -> EventAddress:
    """Return where this generation of the replica publishes. Raises OSError if the path is too long to bind."""
    stem = folder / f"kv-{replica_id.hex[-12:]}-{generation}"
    if len(os.fsencode(stem)) + len("-replay") > MAX_PATH_BYTES:
        raise OSError(f"{stem} is too long for a unix socket; set TMPDIR to a shorter folder")
    return EventAddress(events=f"ipc://{stem}", replay=f"ipc://{stem}-replay")


def relay_socket(folder: Path, node: str) -> Path:
    """Return the relay's own socket."""
    return folder / f"relay-{node[:40]}"

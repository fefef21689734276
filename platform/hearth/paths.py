"""Places that are the same for every process of an instance: the checkout, folders of unix sockets, a mark."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
#: A file in the data directory, while the node is cordoned only because it stopped. An operator's cordon survives a
#: restart.
LEFT_MARK = "left"
#: The folder in the data directory for the files of deleted days, unless a setting names another one.
USAGE_EXPORTS = "usage-exports"


def sockets_dir(data_dir: Path) -> Path:
    """Return the folder of the embedded servers' unix sockets, with a short path: a socket's has at most 107 bytes."""
    digest = sha256(str(data_dir).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"hearth-{digest}"


def routing_memory(data_dir: Path) -> Path:
    """Return how the path of the memory that this instance's gateways share begins.

    It is where files are kept in memory, if the system has such a place: elsewhere each change would reach a disk.
    """
    memory = Path("/dev/shm")
    folder = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"{sockets_dir(data_dir).name}-routing"


def agent_sockets_dir(data_dir: Path) -> Path:
    """Return the folder of the agent's unix sockets, apart from the folder that the embedded servers' user owns."""
    found = sockets_dir(data_dir)
    return found.with_name(f"{found.name}-agent")


def gateway_sockets_dir(data_dir: Path) -> Path:
    """Return the folder of the unix sockets on which this instance's gateways connect to each other."""
    found = sockets_dir(data_dir)
    return found.with_name(f"{found.name}-gateway")

"""Find the engines on this host that answer without a key. Does not import Django."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from workers.agent.processes.process_records import EngineRecord, ProcessRecords
from workers.processes import is_running

TIMEOUT_SECONDS = 3.0
#: A path for which every engine must require its key.
PATH = "/v1/models"


@dataclass(frozen=True, slots=True)
class Unprotected:
    """An engine that serves every client that reaches its port."""

    replica_id: str
    pid: int
    address: str
    port: int


def unprotected(folder: Path) -> Iterator[Unprotected]:
    """Yield the engines recorded in an agent's folder that run and answer without a key."""
    if not folder.is_dir():
        return
    for record in ProcessRecords(folder, "").all_nodes():
        if isinstance(record, EngineRecord) and is_running(record.process):
            address = _address(record.port)
            if address is not None and _answers(address, record.port):
                yield Unprotected(str(record.replica_id), record.pid, address, record.port)


def _address(port: int) -> str | None:
    """Return the address of this port's listener; None when there is none, or this user cannot see it."""
    for connection in psutil.net_connections(kind="tcp"):
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port == port:
            return str(address.ip)
    return None


def _answers(address: str, port: int) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", PATH)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

"""Find the engines on this host that answer without a key. Does not import Django."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import psutil

from workers.agent.processes.process_records import EngineRecord, ProcessRecords
from workers.processes import is_running

TIMEOUT_SECONDS = 3.0
#: Requests for which every engine must require its key. vLLM's own check covers only the first.
REQUESTS = (("GET", "/v1/models"), ("POST", "/invocations"), ("POST", "/tokenize"), ("GET", "/metrics"))
REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class Unprotected:
    """An engine that answers clients without its key at ``paths``."""

    replica_id: str
    pid: int
    address: str
    port: int
    paths: tuple[str, ...]


def unprotected(folder: Path) -> Iterator[Unprotected]:
    """Yield the engines recorded in an agent's folder that run and answer without a key."""
    if not folder.is_dir():
        return
    for record in ProcessRecords(folder, "").all_nodes():
        if not isinstance(record, EngineRecord) or not is_running(record.process):
            continue
        address = _address(record.port)
        if address is None:
            continue
        paths = tuple(path for method, path in REQUESTS if _answers(address, record.port, method, path))
        if paths:
            yield Unprotected(str(record.replica_id), record.pid, address, record.port, paths)


def _address(port: int) -> str | None:
    """Return the address of this port's listener; None when there is none, or this user cannot see it."""
    for connection in psutil.net_connections(kind="tcp"):
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port == port:
            return str(address.ip)
    return None


def _answers(address: str, port: int, method: str, path: str) -> bool:
    """Return whether a request without a key gets anything but a refusal; an error of the engine is an answer."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        body = "{}" if method == "POST" else None
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        return connection.getresponse().status not in REFUSALS
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

"""Keep the node's KV relay running, and read from it how many blocks each engine has cached."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from uuid import UUID

from workers import processes
from workers.agent.processes.paths import AgentPaths
from workers.kv_relay import messages, relay
from workers.kv_relay.addresses import relay_socket
from workers.processes import ProcessIdentity

SOURCE_ROOT = Path(__file__).resolve().parents[3]
#: Between two starts of a relay that ends at once.
PAUSE_SECONDS = 5.0
COUNT_TIMEOUT_SECONDS = 0.2


class RelayProcess:
    """The relay of one node, started by this agent or an earlier one. One thread calls it."""

    def __init__(self, paths: AgentPaths) -> None:
        self._paths = paths
        self._relay = relay.RelayPaths(
            node=paths.node, registry=paths.registry.folder, sockets=paths.sockets, agent_lock=paths.agent_lock
        )
        self._started: ProcessIdentity | None = None
        self._started_at = -PAUSE_SECONDS

    def keep(self) -> None:
        """Start the relay unless it runs. Raises OSError if it cannot be started."""
        now = time.monotonic()
        if now - self._started_at < PAUSE_SECONDS or relay.is_serving(self._relay):
            return
        if self._started is not None:
            processes.collect(self._started)
        self._started_at = now
        self._paths.make_sockets()
        command = [sys.executable, "-m", "workers.kv_relay", "--node", self._paths.node]
        command += ["--registry", str(self._relay.registry), "--sockets", str(self._relay.sockets)]
        command += ["--agent-lock", str(self._relay.agent_lock)]
        environment = dict(os.environ) | {"PYTHONPATH": str(SOURCE_ROOT)}
        self._started = processes.launch(command, log_path=self._paths.relay_log, environment=environment)

    def counts(self) -> dict[UUID, int]:
        """Return how many blocks each replica has cached; empty while the relay does not answer."""
        try:
            counts = messages.count(
                relay_socket(self._relay.sockets, self._relay.node), timeout_seconds=COUNT_TIMEOUT_SECONDS
            )
        except OSError:
            return {}
        return {UUID(replica): blocks for replica, blocks in counts.items()}

"""Start a process of an engine: as the engines' account, with the variables that it may have, and the agent's marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from workers import processes
from workers.agent.processes.paths import FENCE_VARIABLE, OWNER_VARIABLE, AgentPaths
from workers.engines.driver import EngineCommand
from workers.processes import ProcessIdentity


def launch(
    paths: AgentPaths,
    command: EngineCommand,
    *,
    log_path: Path,
    fence: int,
    environment: Mapping[str, str],
    given: bytes = b"",
) -> ProcessIdentity:
    """Start the command, which inherits what it may of ``environment`` and reads ``given`` from its standard input.

    Raises OSError if it cannot be run.
    """
    base = paths.account.environment(environment, paths.data)
    marks = {OWNER_VARIABLE: paths.owner, FENCE_VARIABLE: str(fence)}
    return processes.launch(
        paths.account.command(command.argv),
        log_path=log_path,
        environment=command.environment(base, named=settings.ENGINE_ENVIRONMENT) | marks,
        given=given,
    )

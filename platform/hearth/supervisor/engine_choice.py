"""Decide which engine an instance runs, and install it when it is missing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from hearth import process_records
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.instance.start_options import EngineChoice
from hearth.provisioning.database import Engine
from workers.engines import environment
from workers.engines.errors import EngineUnavailable
from workers.processes import ProcessIdentity, collect, launch


def choose(wanted: EngineChoice, instance: Instance, progress: Progress, *, stopping: Callable[[], bool]) -> Engine:
    """Return the engine to run. ``auto`` falls back to the simulated one, with a warning, where vLLM cannot run.

    Raises EngineUnavailable when ``wanted`` is vllm and vLLM cannot run, or when ``stopping`` during the installation.
    """
    if wanted == "simulated":
        return "simulated"
    try:
        installed = environment.default()
        if installed is None:
            progress.log("Installing the engine, vLLM; this happens once")
            _install(instance, progress, stopping)
            installed = environment.default()
    except EngineUnavailable as error:
        if wanted == "vllm" or stopping():
            raise
        _warn_simulated(progress, error)
        return "simulated"
    if installed is not None:
        progress.log(f"Engine: {installed.kind} {installed.version}")
        if environment.status() is None:
            progress.log("The checkout has another engine lock: `hearth engine install`, then move each model")
    return "vllm"


def _warn_simulated(progress: Progress, error: EngineUnavailable) -> None:
    progress.warn(
        "SIMULATED ENGINE: responses are made up, no model runs.",
        f"vLLM cannot run here: {error.reason}"[:110],
        f"Remedy: {error.remedy}"[:110],
        "`--engine vllm` makes this an error; `--engine simulated` hides this warning.",
    )


def _install(instance: Instance, progress: Progress, stopping: Callable[[], bool]) -> None:
    """Install vLLM in a separate session, recorded like a role, so that a stop or the next start can end it."""
    log_path = instance.log_path("engine-install")
    record = instance.records_dir / "engine-install.json"
    log_path.unlink(missing_ok=True)
    installer = launch(
        [sys.executable, "-m", "workers.engines.environment"], log_path=log_path, environment=instance.environment()
    )
    process_records.write_record(record, installer)
    try:
        status = _follow(installer, log_path, progress, stopping)
    finally:
        process_records.end_session(installer, grace_seconds=2)
        record.unlink(missing_ok=True)
    if status != 0:
        reason, _, remedy = log_path.read_text().strip().rpartition("\n")
        reason = reason.rpartition("\n")[2] or "the installer ended without output"
        raise EngineUnavailable("the start was interrupted" if stopping() else reason, remedy)


def _follow(installer: ProcessIdentity, log_path: Path, progress: Progress, stopping: Callable[[], bool]) -> int:
    """Print the output of the installer; return its exit status, or -1 when stopping."""
    with log_path.open() as log:
        while True:
            status = collect(installer)
            for line in log:
                progress.log(f"  {line.rstrip()}")
            if status is not None:
                return status
            if stopping():
                return -1
            time.sleep(0.2)

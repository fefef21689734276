"""Where a running instance listens: a file in the data directory, for commands with another environment."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

from hearth.instance.instance import Instance

FILE_NAME = "running.json"
_FIELDS = ("host", "port", "metrics_host", "metrics_port", "gateway_processes", "node")


def write(instance: Instance) -> None:
    """Write the file, for as long as the supervisor of the instance runs. Raises OSError."""
    values = {name: getattr(instance, name) for name in _FIELDS}
    (instance.data_dir / FILE_NAME).write_text(json.dumps(values, indent=2))


def remove(instance: Instance) -> None:
    """Remove the file, if there is one."""
    (instance.data_dir / FILE_NAME).unlink(missing_ok=True)


def as_started(instance: Instance) -> Instance:
    """Return the instance with the addresses, processes and node that it was started with, if it was."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = json.loads((instance.data_dir / FILE_NAME).read_text())
        return replace(instance, **{name: found[name] for name in _FIELDS if name in found})
    return instance

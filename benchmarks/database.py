"""PostgreSQL for a benchmark, as durable as ``make up`` has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.errors import NotRun
from benchmarks.gateway import hearth_under_test
from hearth import secrets
from hearth.embedded.errors import EmbeddedServerError
from hearth.instance.instance import Instance
from hearth.provisioning import database


@contextmanager
def running(folder: Path) -> Iterator[Instance]:
    """Run it below a folder, migrated; yield its instance. Raises NotRun."""
    instance = hearth_under_test.place(folder)
    instance.make_folders()
    secrets.load_or_create(instance.data_dir)
    postgres = instance.postgres(secrets.load(instance.data_dir))
    assert postgres is not None, "it has no address of its own"
    try:
        postgres.start()
        database.migrate(instance)
        yield instance
    except (EmbeddedServerError, database.MigrationFailed) as error:
        raise NotRun("its database could not be prepared", str(error)) from None
    finally:
        hearth_under_test.stop_servers(folder)


def run_step(instance: Instance, module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a benchmark's step in the instance's environment, and return its lines of JSON. It prints its own progress.

    Raises NotRun if it fails.
    """
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=instance.environment("portal"),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise NotRun(f"{module} {arguments[0]} failed", f"exit status {ran.returncode}; see above")
    return [json.loads(line) for line in ran.stdout.splitlines()]

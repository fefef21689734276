"""Running instances of their own: `hearth up` in a temporary folder, on free ports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.journey.instance import Instance, wait_for
from tests.ports import INSTANCE_PORTS, free_ports

UP_TIMEOUT_SECONDS = 600


@contextmanager
def running(*options: str, **settings: str) -> Iterator[Instance]:
    """Run an instance for as long as the block lasts; its logs are shown when it does not come up."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-journey-"))
    folder.chmod(0o711)
    names = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "HEARTH_ROLE", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HEARTH_DATA_DIR": str(folder), "HEARTH_PORT": str(free_ports(INSTANCE_PORTS)), **settings}
    command = [str(Path(sys.executable).with_name("hearth"))]
    try:
        up = subprocess.run(
            [*command, "up", "--detach", *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=UP_TIMEOUT_SECONDS,
            check=False,
        )
        assert up.returncode == 0, f"{up.stdout}\n{up.stderr}\n{_logs(folder)}"
        yield Instance(data_dir=folder, environment=environment, command=command, up=_read(folder / "up.json"))
    finally:
        subprocess.run([*command, "down"], env=environment, timeout=120, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="package")
def instance() -> Iterator[Instance]:
    """Start an instance with two real vLLM replicas, once for all journey tests, and room for two further models."""
    with running("--engine", "vllm", "--replicas", "2", HEARTH_SLOTS="5") as found:
        yield found


@pytest.fixture(scope="package")
def simulated() -> Iterator[Instance]:
    """Start an instance with two simulated engines, whose requests wait for longer than a busy machine starts one.

    One for all: a test leaves it with two ready replicas, but for those of test_wait_queue.py, which come last.
    """
    with running("--engine", "simulated", "--replicas", "2") as found:
        for slug in ("acme", "globex"):
            assert found.operator(f"/tenants/{slug}", {"queue_seconds": 180}, method="PATCH").status == 200
        yield found


@pytest.fixture(scope="package", params=["gateway", "view"])
def front(request: pytest.FixtureRequest, instance: Instance) -> Iterator[Instance]:
    """Return the instance twice: behind its gateway, and behind Django's development server as a plain view."""
    if request.param == "gateway":
        yield instance
        return
    address = f"127.0.0.1:{free_ports(1)}"
    with (instance.data_dir / "logs" / "runserver.log").open("wb") as output:
        server = subprocess.Popen(
            [*instance.command, "manage", "runserver", "--noreload", address],
            env=instance.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    view = replace(instance, up={**instance.up, "api_base": f"http://{address}/v1"})
    try:
        wait_for(view.answers, "the development server", seconds=60)
        yield view
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def _read(file: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(file.read_text())
    return found


def _logs(folder: Path) -> str:
    tails = [f"--- {log.name}\n" + log.read_text(errors="replace")[-3000:] for log in sorted(folder.glob("logs/*.log"))]
    return "\n".join(tails)

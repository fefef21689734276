"""A real portal process on the test database, as the role hearth_app behind granian, for browsers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psycopg
from django.db import connection

from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
START_SECONDS = 180


@contextmanager
def portal_process(app_database_url: str, log: Path) -> Iterator[str]:
    """Serve the test database until the block ends; yields ``http://127.0.0.1:<port>``."""
    port = free_ports(1)
    database = urlsplit(app_database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    environment = os.environ | {"DATABASE_URL": database, "HEARTH_ROLE": "portal", "HEARTH_PORT": str(port - 1)}
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--loop", "uvloop", "hearth.asgi:application"],
            cwd=ROOT,
            env=environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        _wait(base, process, log)
        yield base
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def other_connection() -> psycopg.Connection[tuple[object, ...]]:
    """Return a connection besides Django's, which cannot be used in a thread with a running event loop."""
    given = connection.settings_dict
    return psycopg.connect(
        dbname=given["NAME"],
        user=given["USER"],
        password=given["PASSWORD"],
        host=given["HOST"],
        port=given["PORT"] or None,
    )


def _wait(base: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urlopen(f"{base}/portal/login/", timeout=30):
                return
        except OSError:  # it does not listen yet, or a busy machine answers late
            time.sleep(0.1)
    raise RuntimeError(f"the portal did not start:\n{log.read_text()}")

"""The `hearth` command, run as an operator runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from django.db import connection

from hearth.cli.main import hearth as command
from tenants.database import rls

Hearth = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def app_url(app_database_url: str, transactional_db: None) -> str:
    """Return the address of the test database as the role that runs Hearth, with its rights."""
    rls.grant("hearth_app")
    return urlsplit(app_database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()


@pytest.fixture
def hearth(app_url: str) -> Iterator[Hearth]:
    """Return a function that runs the command in this process, as the role that runs Hearth.

    A start takes seconds of a busy machine. Settings are those of the tests: what another setting changes needs
    ``hearth_process``.
    """
    role = urlsplit(app_url)
    before = dict(os.environ)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        connection.close()
        os.environ["DATABASE_URL"] = app_url
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(connection.settings_dict, "USER", role.username)
            patched.setitem(connection.settings_dict, "PASSWORD", unquote(role.password or ""))
            done = CliRunner().invoke(command, arguments, prog_name="hearth")
            connection.close()
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(["hearth", *arguments], done.exit_code, done.stdout, done.stderr)

    yield run
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def hearth_process(app_url: str) -> Hearth:
    """Return a function that starts the command, as the role that runs Hearth."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(Path(sys.executable).with_name("hearth")), *arguments]
        environment = os.environ | {"DATABASE_URL": app_url}
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run

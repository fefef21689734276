"""The `hearth` command, run as an operator runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

from tenants.database import rls

Hearth = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hearth(app_database_url: str, transactional_db: None) -> Hearth:
    """Return a function that runs the command on the test database, as the role that runs Hearth."""
    rls.grant("hearth_app")
    url = urlsplit(app_database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(Path(sys.executable).with_name("hearth")), *arguments]
        environment = os.environ | {"DATABASE_URL": url}
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run

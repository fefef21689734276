"""Data directories for tests that start an instance, and an instance that several files share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hearth.instances import Instance, instance_of_its_own
from tests.servers import remove_sockets


@contextmanager
def _instance() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hearth-house-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)
        remove_sockets(path)


@pytest.fixture
def instance_dir() -> Iterator[Path]:
    """Return a data directory that every user may traverse, as the embedded servers of root need it."""
    with _instance() as path:
        yield path


@pytest.fixture(scope="module")
def shared_instance_dir() -> Iterator[Path]:
    """Return one for all tests of a module that only read."""
    with _instance() as path:
        yield path


@pytest.fixture(scope="session")
def life() -> Iterator[Instance]:
    """Return the instance of health/test_roles.py and then supervisor/test_up.py, which also stops and breaks it.

    Not started. One for both, because a start takes long; ``tests/conftest.py`` has one process run both files.
    """
    with instance_of_its_own("hearth-life-", HEARTH_LOG_FORMAT="json", HEARTH_LOG_REQUESTS="1") as found:
        yield found

"""Data directories for tests that start an instance."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hearth.paths import agent_sockets_dir, gateway_sockets_dir, sockets_dir


@contextmanager
def _instance() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hearth-house-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)
        for folder in sockets_dir(path), agent_sockets_dir(path), gateway_sockets_dir(path):
            shutil.rmtree(folder, ignore_errors=True)


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

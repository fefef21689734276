"""Folders for instances of their own."""

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
    """A data directory that every user may pass, as embedded servers started by root must."""
    with _instance() as path:
        yield path


@pytest.fixture(scope="module")
def shared_instance_dir() -> Iterator[Path]:
    """The same, for the tests of one module that only look."""
    with _instance() as path:
        yield path

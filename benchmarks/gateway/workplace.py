"""The temporary folder of a run, and the removal of what a killed run left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gateway import hearth_under_test
from benchmarks.gateway.site import RECORD_SUFFIX
from hearth.process_records import end_session, read_record, write_record
from workers.processes import identify, is_running

PREFIX = "hearth-bench-"
OWNER_RECORD = "bench.json"


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that other users may pass (embedded servers run as another user), and remove it afterwards."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o711)
    me = identify(os.getpid())
    assert me is not None
    write_record(folder / OWNER_RECORD, me)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """End what runs that were killed left behind, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = read_record(folder / OWNER_RECORD)
        if owner is not None and not is_running(owner):
            for process in filter(None, map(read_record, folder.glob(f"*{RECORD_SUFFIX}"))):
                end_session(process, grace_seconds=0)
            hearth_under_test.stop_servers(folder)
            shutil.rmtree(folder, ignore_errors=True)

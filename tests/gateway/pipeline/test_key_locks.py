"""Of several processes of a host, one runs the request of an Idempotency-Key, whatever became of Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from gateway.pipeline.key_locks import KeyLocks

ROOT = Path(__file__).parents[3]
NAME, OTHER = b"n" * 32, b"o" * 32
HOLDER = """
import sys, time
from pathlib import Path
from gateway.pipeline.key_locks import KeyLocks
print(KeyLocks(Path(sys.argv[1])).take(b"n" * 32), flush=True)
time.sleep(600)
"""


def test_a_key_is_held_once_in_a_process_and_between_runtimes(tmp_path: Path) -> None:
    first, second = KeyLocks(tmp_path), KeyLocks(tmp_path)
    assert first.take(NAME)
    assert not first.take(NAME)
    assert not second.take(NAME)
    assert second.take(OTHER)
    second.release(NAME)
    assert not second.take(NAME), "only its holder releases a key"
    first.release(NAME)
    assert second.take(NAME)
    second.close()
    assert first.take(NAME) and first.take(OTHER)
    first.close()


def test_a_stopped_process_holds_its_key_and_a_killed_one_does_not(tmp_path: Path) -> None:
    locks = KeyLocks(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform")))}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        os.kill(holder.pid, signal.SIGSTOP)
        assert not locks.take(NAME)
    finally:
        holder.kill()
        holder.communicate()
    assert locks.take(NAME)
    locks.close()

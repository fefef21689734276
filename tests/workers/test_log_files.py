"""A log that a process holds open stays below its bound, and no line is lost or torn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from workers import log_files

WRITER = """
import sys
for number in range(int(sys.argv[1])):
    print(f"line {number}", flush=True)
    sys.stdin.readline()
"""


def test_a_process_goes_on_writing_to_its_log_after_each_rotation(tmp_path: Path) -> None:
    log, lines = tmp_path / "role.log", 60
    with (
        log.open("ab") as output,
        subprocess.Popen([sys.executable, "-c", WRITER, str(lines)], stdin=subprocess.PIPE, stdout=output) as writer,
    ):
        assert writer.stdin is not None
        rotations = 0
        for number in range(lines):
            while f"line {number}\n" not in log.read_text():
                assert writer.poll() is None
            rotations += log_files.rotate(log, largest_bytes=100, kept=2)
            writer.stdin.write(b"\n")
            writer.stdin.flush()
    assert rotations > 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["role.log", "role.log.1", "role.log.2"]
    kept = "".join((tmp_path / name).read_text() for name in ("role.log.2", "role.log.1", "role.log")).splitlines()
    assert kept == [f"line {number}" for number in range(lines - len(kept), lines)]
    assert (tmp_path / "role.log.1").stat().st_mode & 0o777 == 0o600


def test_a_small_or_missing_log_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "role.log"
    assert not log_files.rotate(log)
    log.write_text("a line\n")
    assert not log_files.rotate(log)
    assert log.read_text() == "a line\n"

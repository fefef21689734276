"""A drain that keeps up goes later, one that is behind does not, and no process does that shares its session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
STANDING = """
import sys, time
from pathlib import Path
from billing.deference import Deference
deference = Deference()
def told():
    return Path("/proc/self/autogroup").read_text().split()[-1]
found = [told()]
for caught_up, wanted in zip((True, True, False), sys.argv[1:], strict=True):
    for _ in range(100):  # who is not root may change it ten times a second
        deference.stand_back(caught_up)
        if told() == wanted:
            break
        time.sleep(0.1)
    found.append(told())
print(*found)
"""


@pytest.mark.skipif(
    not (AUTOGROUP.exists() and AUTOGROUP.read_text().strip()), reason="this kernel divides time otherwise"
)
@pytest.mark.parametrize(("own_session", "wanted"), [(True, ["10", "10", "0"]), (False, ["0", "0", "0"])])
def test_who_leads_a_session_goes_later_while_it_keeps_up(own_session: bool, wanted: list[str]) -> None:
    command = [sys.executable, "-c", STANDING, *wanted]
    if not own_session:
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r}, check=True)"]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", *wanted]

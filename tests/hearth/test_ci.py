"""CI's own rule: the tests that need the real engine must have run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).resolve().parents[2] / ".ci" / "require_marked_tests.py"
REPORT = """<testsuites><testsuite>
<testcase name="plain"/>
<testcase name="a"><properties><property name="marker" value="real_engine"/></properties>{first}</testcase>
<testcase name="b"><properties><property name="marker" value="real_engine"/></properties></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("report", "status", "says"),
    [
        (REPORT.format(first=""), 0, "2 of 2"),
        (REPORT.format(first="<skipped/>"), 1, "1 of 2"),
        (REPORT.format(first="<failure/>"), 1, "1 of 2"),
        ("<testsuites><testsuite><testcase name='plain'/></testsuite></testsuites>", 1, "0 of 0"),
    ],
)
def test_the_gate_counts_only_tests_that_passed(tmp_path: Path, report: str, status: int, says: str) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(report)
    done = subprocess.run(
        [sys.executable, str(GATE), str(file), "real_engine"], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert done.stdout.startswith(says)


@pytest.mark.filterwarnings("default")
def test_markers_reach_the_report(request: pytest.FixtureRequest) -> None:
    assert ("marker", "filterwarnings") in request.node.user_properties

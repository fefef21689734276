"""Fail unless tests with a marker ran and passed: ``require_marked_tests.py JUNIT_XML MARKER``.

``tests/conftest.py`` writes each test's markers into the report as properties.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

NOT_PASSED = ("failure", "error", "skipped")


def count_passed(report: Path, marker: str) -> tuple[int, int]:
    """Return how many tests with the marker passed, and how many there are."""
    marked = [
        case
        for case in ElementTree.parse(report).iter("testcase")
        if any(each.get("name") == "marker" and each.get("value") == marker for each in case.iter("property"))
    ]
    passed = [case for case in marked if not any(case.find(outcome) is not None for outcome in NOT_PASSED)]
    return len(passed), len(marked)


def main(report: str, marker: str) -> int:
    """Print the count; return 1 when one was skipped or none is there."""
    passed, total = count_passed(Path(report), marker)
    print(f"{passed} of {total} tests marked {marker} passed")
    return 0 if total > 0 and passed == total else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

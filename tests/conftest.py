"""What every test shares. The servers come from ``tests/servers.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: A busy machine is no failure: the first text that is drawn there took over a second, which Hypothesis refuses.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


TESTS = Path(__file__).parent
#: Folders whose tests share one instance or one engine that takes long to start: each runs in one process, these first.
SHARED = ("journey", "engines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests and group them for pytest-xdist, and write each test's markers into the JUnit report.

    A group runs in one process: a folder of SHARED, else one file. ``.ci/require_marked_tests.py`` reads the markers.
    """
    items.sort(key=_place)
    for item in items:
        item.user_properties.extend(("marker", name) for name in sorted({mark.name for mark in item.iter_markers()}))
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(pytest.mark.xdist_group(folder if folder in SHARED else str(item.path.relative_to(TESTS))))


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0]
    return SHARED.index(folder) if folder in SHARED else len(SHARED)

"""What every test shares. The servers come from ``tests/servers.py``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

#: A busy machine is no failure: the first text that is drawn there took over a second, which Hypothesis refuses.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write each test's markers into the JUnit report: ``.ci/run`` counts those marked real_engine."""
    for item in items:
        item.user_properties.extend(("marker", name) for name in sorted({mark.name for mark in item.iter_markers()}))

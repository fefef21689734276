"""Two tenants: in tests about ``acme``, ``globex`` is the stranger."""

from __future__ import annotations

import pytest

from tests.tenants import customers
from tests.tenants.customers import Customer


@pytest.fixture
def acme(db: None) -> Customer:
    """A tenant."""
    return customers.create("acme")


@pytest.fixture
def globex(db: None) -> Customer:
    """Another tenant."""
    return customers.create("globex")

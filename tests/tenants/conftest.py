"""Two tenants: ``globex`` is the stranger of every test about ``acme``."""

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
    """Another."""
    return customers.create("globex")

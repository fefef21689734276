"""The role that runs Hearth, which owns no table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from tenants.database import rls


@pytest.fixture
def as_app(db: None) -> Callable[[], None]:
    """Return a function that goes on as the role of a running instance until the end of the test."""

    def become() -> None:
        rls.grant("hearth_app")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL ROLE hearth_app")

    return become

"""A compiled query returns current rows, in any thread."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from tenants.database.compiled_query import CompiledQuery
from tenants.models import Tenant
from tests.tenants.customers import Customer


@pytest.mark.django_db(transaction=True)
def test_it_is_made_once_and_sees_what_is_there_now(acme: Customer) -> None:
    made: list[str] = []

    def slugs() -> object:
        made.append("once")
        return Tenant.objects.filter(slug__startswith="ac").order_by("slug").values_list("slug", "id")

    query = CompiledQuery(slugs)  # type: ignore[arg-type]
    assert query.rows() == [("acme", acme.tenant.id)]
    other = Tenant.objects.create(slug="acre", name="Acre")
    found: list[tuple[object, ...]] = []

    def look() -> None:
        found.extend(query.rows())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [("acme", acme.tenant.id), ("acre", other.id)]
    assert made == ["once"]

"""Monthly partitions: created ahead, filled from the default one, and protected from other tenants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection

from billing.drain import batch
from billing.ledger import partitions
from billing.models import UsageRecord
from tenants.database import rls
from tenants.ids import TenantId, new_id
from tests.billing.usage_records import row_at, store

pytestmark = pytest.mark.django_db

NOW = datetime(2031, 11, 30, 23, 59, tzinfo=UTC)


def rows_in(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        (count,) = cursor.fetchone()
        return int(count)


def test_this_month_and_three_more_are_made_once() -> None:
    assert partitions.ensure(NOW) == (
        "billing_usagerecord_2031_11",
        "billing_usagerecord_2031_12",
        "billing_usagerecord_2032_01",
        "billing_usagerecord_2032_02",
    )
    assert partitions.ensure(NOW) == ()
    call_command("ensure_partitions", verbosity=0)


def test_a_row_goes_to_the_month_of_its_id_to_the_millisecond() -> None:
    partitions.ensure(NOW)
    tenant_id = TenantId(new_id())
    december = datetime(2031, 12, 1, tzinfo=UTC)
    store(row_at(december - timedelta(milliseconds=1), tenant_id), row_at(december, tenant_id))
    assert rows_in("billing_usagerecord_2031_11") == 1
    assert rows_in("billing_usagerecord_2031_12") == 1
    assert rows_in("billing_usagerecord_default") == 0


def test_rows_of_the_default_partition_move_and_stay_unique() -> None:
    tenant_id = TenantId(new_id())
    early, late = row_at(NOW - timedelta(days=70), tenant_id), row_at(NOW, tenant_id)
    store(early, late)
    made = partitions.ensure(NOW)
    assert "billing_usagerecord_2031_09" in made
    assert "billing_usagerecord_2031_10" not in made
    assert rows_in("billing_usagerecord_default") == 0
    assert set(UsageRecord.objects.values_list("id", flat=True)) == {early.id, late.id}
    assert batch.store([early, late], {}, node="here") == 0


def test_a_partition_shows_a_tenant_its_own_rows_only() -> None:
    mine, stranger = TenantId(new_id()), TenantId(new_id())
    partitions.ensure(NOW)
    store(row_at(NOW, mine), row_at(NOW, stranger), row_at(NOW, stranger))
    for table in ("billing_usagerecord", "billing_usagerecord_2031_11"):
        with rls.as_tenant(mine):
            assert rows_in(table) == 1
        with rls.as_tenant(TenantId(new_id())):
            assert rows_in(table) == 0


def test_the_role_of_the_processes_may_store_into_a_new_partition() -> None:
    partitions.ensure(NOW)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
    store(row_at(NOW, TenantId(new_id())))
    assert rows_in("billing_usagerecord_2031_11") == 1

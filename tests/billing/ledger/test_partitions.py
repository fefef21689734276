"""Daily partitions: created ahead, filled from the default one, and protected from other tenants."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Q

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


def test_today_and_two_weeks_more_are_made_once() -> None:
    made = partitions.ensure(NOW)
    assert (len(made), made[0], made[-1]) == (15, "billing_usagerecord_2031_11_30", "billing_usagerecord_2031_12_14")
    assert partitions.ensure(NOW) == ()
    call_command("ensure_partitions", verbosity=0)


def test_a_row_goes_to_the_day_of_its_id_to_the_millisecond() -> None:
    partitions.ensure(NOW)
    tenant_id = TenantId(new_id())
    december = datetime(2031, 12, 1, tzinfo=UTC)
    store(row_at(december - timedelta(milliseconds=1), tenant_id), row_at(december, tenant_id))
    assert rows_in("billing_usagerecord_2031_11_30") == 1
    assert rows_in("billing_usagerecord_2031_12_01") == 1
    assert rows_in("billing_usagerecord_default") == 0


def test_rows_of_the_default_partition_move_and_stay_unique() -> None:
    tenant_id = TenantId(new_id())
    early, late = row_at(NOW - timedelta(days=70), tenant_id), row_at(NOW, tenant_id)
    store(early, late)
    made = partitions.ensure(NOW)
    assert made[:2] == ("billing_usagerecord_2031_09_21", "billing_usagerecord_2031_11_30")
    assert rows_in("billing_usagerecord_default") == 0
    assert set(UsageRecord.objects.values_list("id", flat=True)) == {early.id, late.id}
    assert batch.store([early, late], {}, node="here") == 0


def test_rows_without_a_price_are_looked_for_only_in_days_that_had_any() -> None:
    partitions.ensure(NOW)
    store(row_at(NOW, TenantId(new_id())))
    within = partitions.that_had_unrated()
    assert within is not None
    plan = UsageRecord.objects.filter(within, amount_pico=None).explain()
    assert "billing_usagerecord_2031_11_30" in plan
    assert "billing_usagerecord_2031_12_01" not in plan
    store(row_at(NOW + timedelta(days=60), TenantId(new_id())))  # a day without a partition
    assert partitions.that_had_unrated() == Q()


@pytest.fixture
def months() -> None:
    """November and December are partitions of whole months, as the release before made them."""
    november = partitions.Month(2031, 11)
    with connection.cursor() as cursor:
        for month in (november, november.next):
            cursor.execute(
                f"CREATE TABLE {partitions.of_month(month).table} PARTITION OF billing_usagerecord FOR VALUES "
                "FROM (hearth_first_id_at(%s)) TO (hearth_first_id_at(%s))",
                [month.begin, month.next.begin],
            )


@pytest.mark.usefixtures("months")
def test_a_month_with_rows_stays_whole_and_an_empty_one_becomes_days() -> None:
    before = row_at(NOW, TenantId(new_id()))
    store(before)
    made = partitions.ensure(NOW)
    assert (len(made), made[0]) == (14, "billing_usagerecord_2031_12_01")
    assert [each.name for each in partitions.existing()][-15:-13] == ["2031-11", "2031-12-01"]
    store(row_at(NOW, TenantId(new_id())), row_at(NOW + timedelta(days=3), TenantId(new_id())))
    assert (rows_in("billing_usagerecord_2031_11"), rows_in("billing_usagerecord_2031_12_03")) == (2, 1)
    assert partitions.ensure(NOW) == ()


def test_the_release_before_makes_days_beside_this_one() -> None:
    stray = row_at(datetime(2031, 9, 21, tzinfo=UTC), TenantId(new_id()))
    store(stray)
    today = datetime.now(UTC).date()
    with connection.cursor() as cursor:
        for month, made in ((date(2031, 9, 1), True), (date(2031, 9, 1), False), (date(2031, 10, 1), False)):
            cursor.execute("SELECT hearth_make_usage_partition(%s)", [month])
            assert cursor.fetchone() == (made,)
        cursor.execute("SELECT hearth_make_usage_partition(%s)", [today])
    assert partitions.of_day(date(2031, 9, 21)) in partitions.existing()
    assert partitions.of_day(today) in partitions.existing()
    assert rows_in("billing_usagerecord_2031_09_21") == 1


def test_a_partition_shows_a_tenant_its_own_rows_only() -> None:
    mine, stranger = TenantId(new_id()), TenantId(new_id())
    partitions.ensure(NOW)
    store(row_at(NOW, mine), row_at(NOW, stranger), row_at(NOW, stranger))
    for table in ("billing_usagerecord", "billing_usagerecord_2031_11_30"):
        with rls.as_tenant(mine):
            assert rows_in(table) == 1
        with rls.as_tenant(TenantId(new_id())):
            assert rows_in(table) == 0


def test_the_role_of_the_processes_may_store_into_a_new_partition() -> None:
    partitions.ensure(NOW)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
    store(row_at(NOW, TenantId(new_id())))
    assert rows_in("billing_usagerecord_2031_11_30") == 1

"""Usage rows and roll-ups, as the role of the processes: what the drain and rating do passes, all else is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from django.contrib.postgres.fields import ArrayField
from django.db import Error, connection, models, transaction

from billing.drain import batch
from billing.ledger import partitions
from billing.models import BypassRollup, UsageRecord, UsageRollup
from billing.pricing.rating import Rates
from tenants.ids import TenantId, new_id
from tests.billing.conftest import Sums, sums
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

MOMENT = datetime(2031, 11, 30, 12, 7, tzinfo=UTC)
RATES = Rates(prompt_pico=150, cached_prompt_pico=15, completion_pico=600)
AMOUNT_PICO = 30 * 150 + 10 * 15 + 7 * 600
NUMBERS = (models.IntegerField, models.DecimalField, models.FloatField)
#: Savings can be negative: what a prediction hit costs may exceed what it saves.
SAVINGS = {"saved_prediction_pico", "saved_prefix_pico"}
ROLLUPS = (UsageRollup, BypassRollup)


@contextmanager
def as_process() -> Iterator[None]:
    """Run the block as the role that every process has."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
        yield
        cursor.execute("RESET ROLE")


def refused(statement: str, reason: str = "only grows") -> None:
    """Try one statement as a process, which must fail."""
    with pytest.raises(Error, match=reason), transaction.atomic(), as_process(), connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def tenant() -> TenantId:
    """A tenant with one rated row, one row without a price, and a bypass, stored by a process."""
    partitions.ensure(MOMENT)
    price_from(MOMENT, RATES)
    tenant_id = TenantId(new_id())
    with as_process():
        store(
            row_at(MOMENT, tenant_id),
            row_at(MOMENT, tenant_id, model_name="unpriced"),
            row_at(MOMENT, tenant_id, cache_result="bypass"),
        )
    return tenant_id


@pytest.mark.parametrize("table", ["billing_usagerecord", "billing_usagerecord_2031_11_30"])
def test_no_process_removes_or_changes_a_row_not_even_in_its_partition(tenant: TenantId, table: str) -> None:
    for field in UsageRecord._meta.concrete_fields:
        refused(f"UPDATE {table} SET {field.column} = {field.column}")
    refused(f"DELETE FROM {table}")
    refused(f"TRUNCATE {table}", "permission denied")
    assert UsageRecord.objects.count() == 3
    assert sums() == Sums(usage_pico=2 * AMOUNT_PICO, rollup_pico=2 * AMOUNT_PICO, ledger_pico=2 * AMOUNT_PICO)


def test_rating_sets_a_missing_price_once_and_nothing_else(tenant: TenantId) -> None:
    unpriced = "WHERE model_name = 'unpriced'"
    price = f"price_version_id = '{new_id()}', amount_pico = 1"
    refused(f"UPDATE billing_usagerecord SET {price}, prompt_tokens = 1 {unpriced}")
    refused(f"UPDATE billing_usagerecord SET currency = 'EUR' {unpriced}")
    price_from(MOMENT, RATES, "unpriced")
    with as_process():
        assert batch.rate_unrated() == 1
    assert sums() == Sums(usage_pico=3 * AMOUNT_PICO, rollup_pico=3 * AMOUNT_PICO, ledger_pico=3 * AMOUNT_PICO)
    refused(f"UPDATE billing_usagerecord SET {price} {unpriced}")
    refused(f"UPDATE billing_usagerecord SET price_version_id = NULL, amount_pico = NULL {unpriced}")


@pytest.mark.parametrize("rollup", ROLLUPS, ids=lambda model: model.__name__)
def test_the_drain_only_adds_to_sums(tenant: TenantId, rollup: type[models.Model]) -> None:
    table = rollup._meta.db_table
    assert [each for each in rollup._meta.concrete_fields if _is_sum(each)]
    for field in rollup._meta.concrete_fields:
        if _is_sum(field):
            refused(f"UPDATE {table} SET {field.column} = {field.column} - 1", "only grows")
            with transaction.atomic(), as_process(), connection.cursor() as cursor:
                cursor.execute(f"UPDATE {table} SET {field.column} = {field.column} + 1")
                assert cursor.rowcount > 0, "policies that hide the rows would let anything pass"
        elif field.column not in SAVINGS:
            refused(f"UPDATE {table} SET {field.column} = {_another(field)}")
    refused(f"DELETE FROM {table}")
    refused(f"TRUNCATE {table}", "permission denied")


def test_the_owner_still_moves_rows_and_drops_partitions(tenant: TenantId) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_usagerecord DETACH PARTITION billing_usagerecord_2031_11_30")
        cursor.execute("DELETE FROM billing_usagerecord_2031_11_30 WHERE model_name = 'unpriced'")
        cursor.execute("DROP TABLE billing_usagerecord_2031_11_30")
    assert UsageRecord.objects.count() == 0


def _is_text(field: models.Field[object, object]) -> bool:
    return isinstance(field, models.CharField)


def _is_sum(field: models.Field[object, object]) -> bool:
    return isinstance(field, NUMBERS) and field.column != "id" and field.column not in SAVINGS


def _another(field: models.Field[object, object]) -> str:
    if isinstance(field, models.UUIDField):
        return f"'{new_id()}'"
    if isinstance(field, ArrayField):
        return "'{}'"
    if isinstance(field, models.DateTimeField):
        return f"{field.column} + interval '1 hour'"
    return f"{field.column} || '1'" if _is_text(field) else f"{field.column} + 1"

"""Migrations that convert usage and its sums, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum
from msgspec.structs import replace

from billing.models import NO_KEY, UsageRecord, UsageRollup
from billing.pricing.rating import Rates
from tenants.ids import TenantId, new_id
from tests.billing.conftest import Sums, sums
from tests.billing.usage_records import price_from, row_at, store

MOMENT = datetime(2026, 3, 1, 12, 7, tzinfo=UTC)
#: Price of 30 uncached and 10 cached prompt tokens and 7 completion tokens.
AMOUNT_PICO = 30 * 150 + 10 * 15 + 7 * 600


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """Usage is deleted afterwards, because Django's flush does not."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")


@pytest.mark.long
@pytest.mark.usefixtures("emptied")
def test_sums_by_key_become_sums_of_all_keys_and_stay_so() -> None:
    price_from(MOMENT, Rates(prompt_pico=150, cached_prompt_pico=15, completion_pico=600))
    tenant, project = TenantId(new_id()), new_id()
    of = [replace(row_at(MOMENT, tenant), project_id=project, key_id=key) for key in (new_id(), new_id())]
    store(*of, replace(row_at(MOMENT, tenant, model_name="free"), project_id=project))
    try:
        call_command("migrate", "billing", "0004", verbosity=0)
        assert without_keys(tenant) == {"demo": (2, 2 * 37, 2 * AMOUNT_PICO), "free": (1, 37, 0)}
        call_command("migrate", "billing", "0006", verbosity=0)
        assert read_by_migration("0007") == []
    finally:
        call_command("migrate", verbosity=0)
    both = Sums(usage_pico=2 * AMOUNT_PICO, rollup_pico=2 * AMOUNT_PICO, ledger_pico=2 * AMOUNT_PICO)
    assert sums() == both
    assert set(UsageRollup.objects.values_list("model_name", "key_id")) == {("demo", NO_KEY), ("free", NO_KEY)}
    assert list(UsageRecord.objects.values_list("avoided_cached_prompt_tokens", "source_id").distinct()) == [(0, None)]
    store(replace(of[0], id=UUID(int=of[0].id.int + 1)))
    assert UsageRollup.objects.aggregate(total=Sum("requests"))["total"] == 4


def read_by_migration(name: str) -> list[str]:
    """Return what the server says of tables that a migration reads or rewrites as a whole, under its exclusive lock."""
    said: list[str] = []
    connection.ensure_connection()
    raw = connection.connection
    raw.add_notice_handler(note := lambda each: said.append(each.message_primary))
    with connection.cursor() as cursor:
        cursor.execute("SET client_min_messages = debug1")
        cursor.execute("DO $$ BEGIN RAISE DEBUG 'heard'; END $$")
        call_command("migrate", "billing", name, verbosity=0)
        cursor.execute("RESET client_min_messages")
    raw.remove_notice_handler(note)
    assert said[:1] == ["heard"]
    return [each for each in said if each.startswith(("verifying table", "rewriting table"))]


def without_keys(tenant: TenantId) -> dict[str, tuple[int, int, int]]:
    """Return requests, tokens and money of each model, read without the key column."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT model_name, requests, prompt_tokens + completion_tokens, amount_pico FROM billing_usagerollup"
            " WHERE tenant_id = %s",
            [tenant],
        )
        return {model: (requests, tokens, int(pico)) for model, requests, tokens, pico in cursor.fetchall()}

"""The ledger, verified in the API."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection
from django.utils import timezone
from rest_framework.test import APIClient

from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

PATH = "/api/v1/ledger/verification"


def test_an_operator_verifies_the_ledger_and_a_tampered_row_is_named(
    as_operator: APIClient, as_acme: APIClient, world: World
) -> None:
    fixtures.store([fixtures.answered(world, world.acme, timezone.now() - timedelta(minutes=5), 1)])
    found = as_operator.get(PATH).json()
    assert (found["is_right"], found["postings"]) == (True, 1)
    assert {each["kind"] for each in found["balances"]} == {"receivable", "revenue"}
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_ledgerentry DISABLE TRIGGER USER")
        cursor.execute("UPDATE billing_ledgerentry SET amount_pico = amount_pico * 2")
    found = as_operator.get(f"{PATH}?since=2024-01").json()
    [wrong] = [each for each in found["checks"] if each["differences"]]
    [difference] = wrong["differences"]
    assert (wrong["name"], difference["tenant_id"]) == ("as-charged", str(world.acme.tenant.id))
    assert difference["found"] == 2 * difference["expected"]
    assert error_of(as_operator.get(f"{PATH}?since=2026-13"))["code"] == "invalid_value"
    assert as_acme.get(PATH).status_code == 403

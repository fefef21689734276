"""`hearth ledger verify`, run as an operator runs it."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from billing.accounts import credits
from billing.accounts.credits import NewCredit
from tenants import registry
from tenants.audit import SYSTEM
from tests.hearth.cli.conftest import Hearth


@pytest.mark.django_db(transaction=True)
def test_a_tampered_ledger_is_found_and_ends_with_status_1(hearth: Hearth) -> None:
    acme = registry.create_tenant(SYSTEM, slug="acme", name="Acme")
    credits.submit(SYSTEM, acme, "1", NewCredit(kind="top_up", amount_pico=10**12))
    right = hearth("ledger", "verify")
    assert (right.returncode, right.stderr) == (0, "")
    assert "1 postings, nothing differs." in right.stdout
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_ledgerentry DISABLE TRIGGER USER")
        cursor.execute("UPDATE billing_ledgerentry SET amount_pico = amount_pico + 1 WHERE amount_pico > 0")
        cursor.execute("ALTER TABLE billing_ledgerentry ENABLE TRIGGER USER")
    wrong = hearth("ledger", "verify")
    assert (wrong.returncode, "something differs." in wrong.stdout) == (1, True)
    assert "differs  Each posting has entries, and they sum to zero." in wrong.stdout
    assert ": 1 instead of 0" in wrong.stdout
    assert json.loads(hearth("ledger", "verify", "--json", "--since", "2026-01").stdout)["is_right"] is False

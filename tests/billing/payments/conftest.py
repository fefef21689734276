"""Invoices that are to be paid, and lines of bank statements."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from billing.models import Invoice
from billing.payments import importing
from billing.payments.bank_statement import Entry, Statement
from billing.payments.importing import Imported
from tenants.models import Tenant
from tests.billing.invoices import conftest as invoicing
from tests.billing.invoices.conftest import ADA, finalize

acme, issuer = invoicing.acme, invoicing.issuer
ACCOUNT = "DE89370400440532013000"


def entry(**fields: Any) -> Entry:
    """Return a line that pays the first invoice in full, but for these fields."""
    values: dict[str, Any] = {
        "place": "line 2",
        "bank_account": ACCOUNT,
        "bank_reference": "B-1",
        "booked_on": date(2026, 4, 10),
        "amount_cents": 381,
        "currency": "USD",
        "payer": "Acme GmbH",
        "remittance": "INV-000001",
    }
    return Entry(**values | fields)


def import_one(**fields: Any) -> Imported:
    """Import one line."""
    [done] = importing.run(ADA, Statement(entries=[entry(**fields)])).lines
    return done


@pytest.fixture
def invoice(acme: Tenant) -> Invoice:
    """An invoice over 3.81 USD."""
    found = finalize(acme)
    assert (found.number, found.total_cents) == ("INV-000001", 381)
    return found

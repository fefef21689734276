"""An invoice that is due on 19 April 2026, and days after it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pytest

from billing.dunning import policy, run
from billing.models import DunningStep, Invoice
from tenants.models import Tenant
from tests.billing.invoices import conftest as invoicing
from tests.billing.invoices.conftest import ADA, finalize

acme, issuer = invoicing.acme, invoicing.issuer
DUE = date(2026, 4, 19)
#: Requests are refused 30 days after an invoice was due.
WITH_SUSPENSION = {"suspension_days": 30}


def at(days: int, hour: int = 12) -> datetime:
    """Return a moment so many days after the invoice was due."""
    return datetime.combine(DUE + timedelta(days=days), time(hour), UTC)


def run_until(days: int, start: int = -1) -> None:
    """Run dunning at noon of each day up to so many after the invoice was due."""
    for each in range(start, days + 1):
        run.run(at(each))


def steps(invoice: Invoice) -> list[tuple[str, int]]:
    """Return the steps that an invoice got, each with how many days after it was due."""
    rows = DunningStep.objects.filter(invoice=invoice).order_by("id")
    return [(each.kind, (each.taken_on - DUE).days) for each in rows]


@pytest.fixture
def invoice(acme: Tenant) -> Invoice:
    """An invoice over 3.81 USD."""
    found = finalize(acme)
    assert found.due_on == DUE
    return found


@pytest.fixture
def suspending(issuer: object) -> None:
    """The issuer's policy suspends after 30 days."""
    policy.set_policy(ADA, WITH_SUSPENSION)

"""The ledger: balanced, posted once, immutable, and separate for each tenant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest
from django.db import Error, IntegrityError, connection, transaction
from django.db.models import Sum

from billing.ledger import ledger
from billing.ledger.ledger import Posting
from billing.models import LedgerAccount, LedgerEntry, LedgerTransaction
from tenants.database import rls
from tenants.ids import TenantId, new_id

pytestmark = pytest.mark.django_db


def posting(tenant_id: TenantId, amount_pico: int, currency: str = "USD") -> Posting:
    return Posting(tenant_id=tenant_id, currency=currency, amount_pico=amount_pico, usage_ids=(new_id(), new_id()))


def balances(tenant_id: TenantId) -> list[tuple[str, str, int]]:
    accounts = LedgerAccount.objects.filter(tenant_id=tenant_id).order_by("kind", "currency")
    return [
        (kind, currency, int(total))
        for kind, currency, total in accounts.values_list("kind", "currency", Sum("entries__amount_pico"))
    ]


@contextmanager
def constraints_checked() -> Iterator[None]:
    """Check deferred constraints at the end of the block."""
    with transaction.atomic():
        yield
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_each_posting_debits_what_is_owed_and_credits_revenue() -> None:
    acme, globex = TenantId(new_id()), TenantId(new_id())
    with constraints_checked():
        ledger.post([posting(acme, 700), posting(globex, 5), posting(acme, 20, "EUR")])
        ledger.post([posting(acme, 1)])
    assert balances(acme) == [
        ("receivable", "EUR", 20),
        ("receivable", "USD", 701),
        ("revenue", "EUR", -20),
        ("revenue", "USD", -701),
    ]
    assert balances(globex) == [("receivable", "USD", 5), ("revenue", "USD", -5)]
    assert sum(LedgerEntry.objects.values_list("amount_pico", flat=True)) == 0


def test_the_same_usage_is_posted_once() -> None:
    once = posting(TenantId(new_id()), 700)
    ledger.post([once])
    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.post([once])
    assert LedgerEntry.objects.count() == 2


def test_a_transaction_that_does_not_balance_is_refused() -> None:
    tenant_id = new_id()
    account = LedgerAccount.objects.create(tenant_id=tenant_id, kind="receivable", currency="USD")
    with pytest.raises(IntegrityError, match="does not sum to zero"), constraints_checked():
        unequal = LedgerTransaction.objects.create(tenant_id=tenant_id, kind="usage", source="unequal")
        LedgerEntry.objects.create(transaction=unequal, account=account, amount_pico=Decimal(1))


def test_entries_are_never_changed_or_removed() -> None:
    ledger.post([posting(TenantId(new_id()), 700)])
    with pytest.raises(Error, match="only grows"), transaction.atomic():
        LedgerEntry.objects.update(amount_pico=0)
    with pytest.raises(Error, match="only grows"), transaction.atomic():
        LedgerEntry.objects.all().delete()


def test_a_tenant_reads_its_own_balance_and_a_stranger_none() -> None:
    mine, stranger = TenantId(new_id()), TenantId(new_id())
    ledger.post([posting(mine, 700), posting(stranger, 5)])
    expected = balances(mine)
    with rls.as_tenant(mine):
        assert balances(mine) == expected
        assert balances(stranger) == []
        assert LedgerEntry.objects.count() == 2
        assert LedgerTransaction.objects.count() == 1
    with rls.as_tenant(TenantId(new_id())):
        assert LedgerEntry.objects.count() == 0

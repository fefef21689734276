"""Money of a paid invoice that went back: net and tax, never more than was paid, taken back as a whole."""

from __future__ import annotations

import pytest

from billing.accounts import credits, overpaid, returns
from billing.accounts.credits import NewCredit
from billing.errors import BadCredit, CreditRefused, InvoiceRefused
from billing.invoices import finalizing, registry, steps
from billing.models import CreditEntry, Invoice, Issuer, LedgerEntry
from billing.months import closing
from reconciliation import ledger
from tenants.errors import NotFound
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, acme, issuer, month

__all__ = ["acme", "issuer"]

pytestmark = pytest.mark.django_db

CENT = 10**10


@pytest.fixture
def invoice(acme: Tenant, issuer: Issuer) -> Invoice:
    """A paid invoice of 3.20 and 0.61 of tax."""
    closing.close(ADA, month(acme))
    made, _ = finalizing.finalize(ADA, month(acme))
    steps.pay(ADA, made, reference="wire", paid_on=steps.today(made))
    made.refresh_from_db()
    assert (made.total_cents, made.tax_cents, made.state) == (381, 61, "paid")
    return made


def give_back(invoice: Invoice, cents: int, key: str) -> int:
    """Post a return; return its tax in cents."""
    wanted = NewCredit(kind="return", amount_pico=cents * CENT, reason="refund", reference=key, invoice=invoice.id)
    request, _ = credits.submit(ADA, Tenant.objects.get(id=invoice.tenant_id), key, wanted)
    return int(request.tax_pico) // CENT


def books(kind: str) -> int:
    """Return the balance of the accounts of a kind, in cents, debit positive."""
    rows = LedgerEntry.objects.filter(account__kind=kind).values_list("amount_pico", flat=True)
    return sum(map(int, rows)) // CENT


def test_returns_have_their_share_of_the_tax_and_all_of_them_all_of_it(invoice: Invoice) -> None:
    assert [give_back(invoice, cents, f"r{cents}") for cents in (100, 7, 274)] == [16, 1, 44]
    assert (books("tax"), books("cash"), books("prepaid")) == (0, 0, 0)
    with pytest.raises(BadCredit, match=r"use at most 0.00 \w+, which was paid for"):
        give_back(invoice, 1, "more")
    assert ledger.verify().is_right


def test_a_return_that_was_taken_back_can_be_made_again_with_the_same_tax(invoice: Invoice) -> None:
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    before = (books("tax"), books("cash"), books("revenue"))
    give_back(invoice, 100, "first")
    for number, entry in enumerate(CreditEntry.objects.order_by("id")):
        wanted = NewCredit(kind="reversal", reason="dispute won", refers_to=entry.id)
        if number:  # the second entry of the return is that of the first
            with pytest.raises(CreditRefused, match="is taken back already"):
                credits.submit(ADA, tenant, "again", wanted)
        else:
            credits.submit(ADA, tenant, "back", wanted)
            assert credits.submit(ADA, tenant, "back", wanted)[1] is False
    assert (books("tax"), books("cash"), books("revenue")) == before
    assert returns.returned_cents(invoice) == 0
    assert give_back(invoice, 381, "second") == 61
    assert ledger.verify().is_right


def test_an_invoice_whose_money_went_back_is_not_void_and_its_payment_stays(invoice: Invoice) -> None:
    give_back(invoice, 100, "r")
    with pytest.raises(InvoiceRefused, match="went back"):
        steps.void(ADA, invoice, "wrong")
    with pytest.raises(InvoiceRefused, match="went back"):
        steps.undo_payment(ADA, invoice.payments.get().id, "wrong")


def test_an_invoice_that_was_issued_again_returns_what_was_paid_for_the_void_one(invoice: Invoice) -> None:
    steps.void(ADA, invoice, "wrong address")
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    again, _ = finalizing.finalize(ADA, month(tenant))
    with pytest.raises(BadCredit, match="give the one that replaces it"):
        give_back(invoice, 100, "void")
    assert [give_back(again, cents, f"r{cents}") for cents in (100, 281)] == [16, 45]
    with pytest.raises(BadCredit, match=r"use at most 0.00 \w+"):
        give_back(again, 1, "more")
    assert (books("tax"), books("cash"), books("receivable")) == (0, 0, 0)
    with pytest.raises(InvoiceRefused, match="hearth invoice unpay"):
        steps.void(ADA, again, "wrong")
    assert ledger.verify().is_right


def test_what_went_back_of_a_void_invoice_is_not_paid_for_the_next_one(invoice: Invoice) -> None:
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    give_back(invoice, 200, "r")
    wanted = NewCredit(kind="reversal", reason="void", refers_to=CreditEntry.objects.order_by("id")[0].id)
    credits.submit(ADA, tenant, "back", wanted)
    steps.undo_recorded(ADA, invoice, "wire", "2.00 were refunded")
    steps.pay(ADA, invoice, reference="what stayed", paid_on=steps.today(invoice), amount_cents=181)
    steps.void(ADA, invoice, "wrong")
    again, _ = finalizing.finalize(ADA, month(tenant))
    assert (registry.open_cents(again), again.applied_cents, books("cash"), books("receivable")) == (200, 181, 181, 200)
    assert ledger.verify().is_right


def test_what_became_credit_is_no_part_of_what_an_invoice_took_over(invoice: Invoice) -> None:
    closed = invoice.closing
    overpaid.keep(ADA, closed, closed.id, 81)
    steps.void(ADA, invoice, "wrong address")
    again, _ = finalizing.finalize(ADA, month(Tenant.objects.get(id=invoice.tenant_id)))
    steps.pay(ADA, again, reference="rest", paid_on=steps.today(again))
    assert returns.paid_cents(again) == 381
    give_back(again, 350, "r")
    with pytest.raises(InvoiceRefused, match="went back"):  # 300 of the void one are left
        steps.undo_payment(ADA, again.payments.get().id, "wrong")


def test_a_return_is_of_an_invoice_of_its_tenant_that_is_not_void(invoice: Invoice) -> None:
    globex = Tenant.objects.create(slug="globex", name="Globex")
    wanted = NewCredit(kind="return", amount_pico=CENT, reason="x", invoice=invoice.id)
    with pytest.raises(NotFound):
        credits.submit(ADA, globex, "stranger", wanted)
    with pytest.raises(BadCredit, match="only a return is"):
        own = Tenant.objects.get(id=invoice.tenant_id)
        credits.submit(ADA, own, "top", NewCredit(kind="top_up", amount_pico=CENT, invoice=invoice.id))
    steps.void(ADA, invoice, "wrong")
    with pytest.raises(BadCredit, match="is void"):
        give_back(invoice, 100, "r")
    assert not CreditEntry.objects.exists()

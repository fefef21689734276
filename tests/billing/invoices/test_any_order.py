"""Whatever people do with an invoice and credit, in any order: its sums agree after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.db.models import Sum

from billing.accounts import balance, credits, returns
from billing.accounts.credits import NewCredit
from billing.errors import BadCredit, CreditRefused, InvoiceRefused
from billing.invoices import crediting, finalizing, registry, steps
from billing.invoices.crediting import Line
from billing.models import CreditEntry, CreditRequest, Invoice, InvoicePayment, LedgerAccount, LedgerEntry
from billing.months import closing, reopening
from billing.pricing.amounts import pico_per_minor
from reconciliation import ledger
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, NOW, finalize, month
from tests.billing.invoices.test_crediting import PAID_ON
from tests.billing.usage_records import row_at, store

pytestmark = [pytest.mark.django_db, pytest.mark.long]

CENT = pico_per_minor("USD")
Account = LedgerAccount.Kind
REFUSED = (BadCredit, CreditRefused, InvoiceRefused)
#: What is done, some of it more often.
DEEDS = (
    *("pay", "pay", "pay", "credit", "credit", "unpay"),
    *("send_back", "reverse", "refund", "top_up", "issue_again"),
)


@dataclass(slots=True)
class Finance:
    """Somebody who does things at random with the invoice of one month."""

    tenant: Tenant
    random: Random
    log: list[str] = field(default_factory=list)

    @property
    def invoice(self) -> Invoice:
        """The month's last one."""
        return Invoice.objects.filter(tenant_id=self.tenant.id).latest("id")

    def act(self) -> None:
        """Do one thing, or have it refused."""
        names = (
            "pay",
            "pay",
            "pay",
            "credit",
            "credit",
            "unpay",
            "send_back",
            "reverse",
            "refund",
            "top_up",
            "issue_again",
        )
        name, cents = self.random.choice(names), self.random.randint(1, 400)
        does: Callable[[int], object] = getattr(self, f"_{name}")
        try:
            with transaction.atomic():
                does(cents)
        except REFUSED as error:
            self.log.append(f"{name} {cents}: {error}")
        else:
            self.log.append(f"{name} {cents}")

    def _pay(self, cents: int) -> None:
        amount = min(cents, max(1, registry.open_cents(self.invoice)))
        steps.pay(ADA, self.invoice, reference=str(uuid4()), paid_on=PAID_ON, amount_cents=amount, may_be_earlier=True)

    def _credit(self, cents: int) -> None:
        lines = [Line(text="An hour", net_cents=cents // 3 + 1)] if cents > 40 else None
        crediting.submit(ADA, self.invoice, str(uuid4()), "SLA", lines)

    def _unpay(self, _: int) -> None:
        for each in self._one(InvoicePayment.objects.filter(undone=None).values_list("id", flat=True)):
            steps.undo_payment(ADA, each, "it bounced")

    def _send_back(self, cents: int) -> None:
        self._submit(NewCredit(kind="return", amount_pico=cents * CENT, reason="dispute", invoice=self.invoice.id))

    def _reverse(self, _: int) -> None:
        for each in self._one(CreditEntry.objects.values_list("id", flat=True)):
            self._submit(NewCredit(kind="reversal", reason="a slip", refers_to=each))

    def _refund(self, cents: int) -> None:
        self._submit(NewCredit(kind="refund", amount_pico=cents * CENT, reason="they leave"))

    def _top_up(self, cents: int) -> None:
        self._submit(NewCredit(kind="top_up", amount_pico=cents * CENT))

    def _issue_again(self, cents: int) -> None:
        steps.void(ADA, self.invoice, "wrong")
        reopening.request(ADA, month(self.tenant), "again")
        reopening.confirm(EVE, month(self.tenant))
        if cents > 200:
            store(row_at(MIDDLE, TenantId(self.tenant.id), tokens=(cents * 10_000, 0, 0)))
        closing.close(ADA, month(self.tenant))
        assert finalizing.finalize(ADA, month(self.tenant), now=NOW)[1]

    def _submit(self, wanted: NewCredit) -> None:
        credits.submit(ADA, self.tenant, str(uuid4()), wanted)

    def _one(self, ids: Iterable[UUID]) -> list[UUID]:
        every = list(ids)
        return [self.random.choice(every)] if every else []


def posted_cents(kind: Account) -> int:
    """Return what the ledger has in an account."""
    rows = LedgerEntry.objects.filter(account__kind=kind, account__tenant_id__isnull=False)
    return int(rows.aggregate(total=Sum("amount_pico", default=0))["total"]) // CENT


def require_agreement(invoice: Invoice) -> None:
    """Check what holds after each step."""
    open_cents, notes = registry.open_cents(invoice), invoice.credit_notes.filter(is_partial=True)
    assert (invoice.state == "paid") == (open_cents == 0)
    assert posted_cents(Account.RECEIVABLE) == open_cents
    assert balance.of(invoice.tenant_id).prepaid_pico >= 0 and ledger.verify().is_right
    gone = returns.standing(CreditRequest.objects.all())
    tax = int(gone.aggregate(total=Sum("tax_pico", default=0))["total"]) // CENT
    assert -posted_cents(Account.TAX) == invoice.tax_cents - sum(each.tax_cents for each in notes) - tax
    assert returns.returned_cents(invoice) + sum(each.total_cents for each in notes) <= invoice.total_cents + 1
    moved = CreditEntry.objects.filter(kind__in=("top_up", "refund")) | CreditEntry.objects.filter(
        kind="reversal", refers_to__kind__in=("top_up", "refund")
    )
    paid = sum(InvoicePayment.objects.filter(undone=None).values_list("amount_cents", flat=True))
    assert posted_cents(Account.CASH) == paid + sum(map(int, moved.values_list("amount_pico", flat=True))) // CENT


@pytest.mark.parametrize("seed", range(10))
def test_sums_agree_after_each_step(acme: Tenant, seed: int) -> None:
    finance = Finance(acme, Random(seed))
    for _ in range(seed % 3):
        finance._top_up(finance.random.randint(1, 250))
    finalize(acme)
    for _ in range(16):
        finance.act()
        try:
            require_agreement(finance.invoice)
        except AssertionError:
            print("\n".join(finance.log))
            raise

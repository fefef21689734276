"""A payment that failed is noted once, with an event, and changes nothing of what is to be paid."""

from __future__ import annotations

from datetime import date

import pytest

from billing.invoices import registry, steps
from billing.models import Invoice, PaymentFailure
from billing.payments import failures
from notifications.mail import texts
from notifications.models import Event
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.billing.invoices.conftest import ADA

pytestmark = pytest.mark.django_db


def test_a_failed_payment_is_noted_once_with_an_event(invoice: Invoice) -> None:
    assert failures.note(SYSTEM, invoice, reference="ch_1", reason="Your card\0was\ndeclined.")
    assert not failures.note(SYSTEM, invoice, reference="ch_1", reason="Your card was declined.")
    assert failures.note(SYSTEM, invoice, reference="ch_2", reason="", failed_on=date(2026, 4, 9))
    found = PaymentFailure.objects.order_by("id").values_list("reference", "reason")
    assert list(found) == [("ch_1", "Your card was declined."), ("ch_2", failures.NO_REASON)]
    events = Event.objects.filter(type="hearth.payment.failed.v1").order_by("id")
    assert [(each.data["reference"], each.data["due"]) for each in events] == [("ch_1", "3.81"), ("ch_2", "3.81")]
    assert "Your card was declined." in texts.of(events[0]).body
    assert AuditEntry.objects.filter(action="payment.failed", object_id=str(invoice.id)).count() == 2
    assert registry.open_cents(invoice) == 381


def test_a_failure_that_comes_late_says_nothing(invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=date(2026, 4, 10))
    assert not failures.note(SYSTEM, invoice, reference="ch_1", reason="declined")
    assert not PaymentFailure.objects.exists()

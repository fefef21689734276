"""Credit: what people add and take, what waits for a second person, and what nobody can make of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.utils import timezone

from billing.accounts import balance, credits, promotions
from billing.accounts.credits import NewCredit
from billing.errors import BadCredit, CreditRefused
from billing.models import CreditEntry, CreditRequest, LedgerEntry
from billing.pricing.amounts import PICO
from tenants import registry
from tenants.audit import Actor
from tenants.errors import NotAllowed, NotFound
from tenants.ids import PLATFORM_SLUG, new_id
from tenants.models import AuditEntry, Tenant

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
TEN = NewCredit(kind="top_up", amount_pico=10 * PICO, reference="payment 1")


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def promotion(amount: int, days: int = 9) -> NewCredit:
    return NewCredit(kind="promotion", amount_pico=amount * PICO, expires_at=timezone.now() + timedelta(days=days))


def post(tenant: Tenant, wanted: NewCredit, key: str = "") -> CreditEntry:
    """Post a change and return its entry."""
    request, _ = credits.submit(ADA, tenant, key or str(new_id()), wanted)
    return CreditEntry.objects.get(request=request)


def books(tenant: Tenant) -> dict[str, int]:
    """Return the balance of each of a tenant's accounts, debit positive, in units."""
    rows = LedgerEntry.objects.filter(account__tenant_id=tenant.id).values_list("account__kind")
    return {
        kind: int(total) // PICO for kind, total in rows.annotate(total=Sum("amount_pico")).order_by("account__kind")
    }


def test_each_kind_is_balanced_in_the_ledger(acme: Tenant) -> None:
    top_up = post(acme, TEN)
    assert books(acme) == {"cash": 10, "prepaid": -10}
    post(acme, promotion(5))
    assert books(acme) == {"cash": 10, "prepaid": -10, "promotion": -5, "promotion_cost": 5}
    post(acme, NewCredit(kind="refund", amount_pico=4 * PICO, reason="they leave", refers_to=top_up.id))
    post(acme, NewCredit(kind="correction", amount_pico=-1 * PICO, reason="paid twice"))
    post(acme, NewCredit(kind="correction", amount_pico=2 * PICO, reason="an outage"))
    assert books(acme) == {"cash": 6, "prepaid": -7, "promotion": -5, "promotion_cost": 5, "revenue": 1}
    found = balance.of(acme.id)
    assert (found.prepaid_pico, found.promotion_pico, found.total_pico) == (7 * PICO, 5 * PICO, 12 * PICO)
    assert AuditEntry.objects.filter(action="credit.posted", tenant=acme).count() == 5


def test_the_same_key_again_changes_nothing_and_another_change_under_it_is_refused(acme: Tenant) -> None:
    first, new = credits.submit(ADA, acme, "payment-1", TEN)
    again, not_new = credits.submit(EVE, acme, "payment-1", TEN)
    assert (first.id, new, not_new) == (again.id, True, False)
    with pytest.raises(CreditRefused, match="the key 'payment-1' was used for another change"):
        credits.submit(ADA, acme, "payment-1", replace(TEN, amount_pico=11 * PICO))
    other = Tenant.objects.create(slug="globex", name="Globex")
    assert credits.submit(ADA, other, "payment-1", TEN)[1]
    assert (books(acme), AuditEntry.objects.filter(tenant=acme).count()) == ({"cash": 10, "prepaid": -10}, 1)


def test_a_repeated_promotion_is_the_same_one_even_after_it_expired(acme: Tenant) -> None:
    soon = replace(promotion(5), expires_at=timezone.now() + timedelta(milliseconds=200))
    first, _ = credits.submit(ADA, acme, "spring", soon)
    assert soon.expires_at is not None
    while timezone.now() <= soon.expires_at:
        pass
    assert credits.submit(ADA, acme, "spring", soon) == (first, False)


def test_an_entry_is_taken_back_once_by_another_one(acme: Tenant) -> None:
    top_up, gift = post(acme, TEN), post(acme, promotion(5))
    for entry in (top_up, gift):
        back = NewCredit(kind="reversal", reason="a mistake", refers_to=entry.id)
        reversal = post(acme, back)
        assert (reversal.refers_to, reversal.promotion_id) == (entry, entry.promotion_id)
        with pytest.raises(CreditRefused, match="is taken back already"):
            post(acme, back)
        with pytest.raises(CreditRefused, match="of the kind reversal cannot be taken back"):
            post(acme, replace(back, refers_to=reversal.id))
    assert set(books(acme).values()) == {0}
    assert balance.of(acme.id).total_pico == 0


def test_no_more_is_taken_than_there_is(acme: Tenant) -> None:
    top_up = post(acme, TEN)
    post(acme, promotion(50))  # which is no money, and is not refunded
    post(acme, NewCredit(kind="refund", amount_pico=3 * PICO, reason="part"))
    for wanted in (
        NewCredit(kind="refund", amount_pico=8 * PICO, reason="all"),
        NewCredit(kind="correction", amount_pico=-8 * PICO, reason="all"),
        NewCredit(kind="reversal", refers_to=top_up.id, reason="all"),
    ):
        with pytest.raises(CreditRefused, match=r"7\.00 USD of prepaid credit are left, less than"):
            post(acme, wanted)
    assert balance.of(acme.id).prepaid_pico == 7 * PICO
    with pytest.raises(IntegrityError, match="below zero"), transaction.atomic():
        top_up.id, top_up.request, top_up.amount_pico = new_id(), None, -8 * PICO
        top_up.transaction = top_up.transaction.__class__.objects.create(tenant_id=acme.id, kind="credit", source="x")
        top_up.save(force_insert=True)
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_large_amounts_wait_for_a_second_person_also_in_small_parts(acme: Tenant, settings: Any) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 25
    assert post(acme, TEN) and post(acme, replace(TEN, reference="payment 2"))
    third, _ = credits.submit(ADA, acme, "payment-3", replace(TEN, reference="payment 3"))
    assert (third.state, third.needs_approval, balance.of(acme.id).prepaid_pico) == ("pending", True, 20 * PICO)
    for alone in (ADA, Actor(kind="user", name="ada")):
        with pytest.raises(CreditRefused, match="ada requested it; a second person confirms it"):
            credits.approve(alone, acme, third.id)
    approved = credits.approve(EVE, acme, third.id)
    assert (approved.state, approved.decided_by, balance.of(acme.id).prepaid_pico) == ("posted", "eve", 30 * PICO)
    for again in (credits.approve, credits.reject):
        with pytest.raises(CreditRefused, match="the request is posted already"):
            again(EVE, acme, third.id)
    assert credits.submit(EVE, acme, "payment-4", TEN)[0].state == "posted"  # who has posted nothing alone today
    entry = AuditEntry.objects.get(action="credit.approved")
    assert (entry.actor, entry.after and entry.after["requested_by"]) == ("eve", "ada")


def test_a_rejected_request_posts_nothing_and_what_is_approved_is_checked_again(acme: Tenant, settings: Any) -> None:
    post(acme, TEN)
    settings.CREDIT_APPROVAL_ABOVE = 0
    refund = NewCredit(kind="refund", amount_pico=8 * PICO, reason="they leave")
    one, two, three = (credits.submit(ADA, acme, key, refund)[0] for key in ("1", "2", "3"))
    assert credits.reject(ADA, acme, one.id).state == "rejected"
    credits.approve(EVE, acme, two.id)
    with pytest.raises(CreditRefused, match=r"2\.00 USD of prepaid credit are left"):
        credits.approve(EVE, acme, three.id)
    assert CreditRequest.objects.get(id=three.id).state == "pending"
    globex = Tenant.objects.create(slug="globex", name="Globex")
    with pytest.raises(NotFound):
        credits.approve(EVE, globex, three.id)


def test_the_database_refuses_an_approval_by_the_same_person_and_changes_of_entries(
    acme: Tenant, settings: Any
) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 0
    request, _ = credits.submit(ADA, acme, "1", TEN)
    with pytest.raises(IntegrityError, match="credit_approved_by_a_second_person"), transaction.atomic():
        CreditRequest.objects.filter(id=request.id).update(state="posted", decided_by="ada", decided_at=timezone.now())


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (replace(TEN, amount_pico=0), "amount_pico"),
        (replace(TEN, amount_pico=-PICO), "amount_pico"),
        (replace(TEN, amount_pico=None), "amount_pico"),
        (replace(TEN, amount_pico=10**18 + 10**10), "amount_pico"),
        (replace(TEN, amount_pico=10**50), "amount_pico"),
        (replace(TEN, amount_pico=PICO + 1), "amount_pico"),
        (replace(TEN, kind="gift"), "kind"),
        (replace(TEN, kind="applied"), "kind"),
        (replace(TEN, reference="a\0b"), "reference"),
        (replace(TEN, reason="x" * 501), "reason"),
        (replace(TEN, expires_at=timezone.now() + timedelta(days=1)), "expires_at"),
        (replace(TEN, refers_to=new_id()), "refers_to"),
        (replace(TEN, kind="promotion"), "expires_at"),
        (replace(TEN, kind="promotion", expires_at=timezone.now() - timedelta(days=1)), "expires_at"),
        (replace(TEN, kind="promotion", expires_at=timezone.now() + timedelta(days=9999)), "expires_at"),
        (replace(TEN, kind="refund"), "reason"),
        (replace(TEN, kind="correction", reason=" "), "reason"),
        (NewCredit(kind="reversal", reason="why"), "refers_to"),
    ],
)
def test_what_is_not_valid_is_refused_and_changes_nothing(acme: Tenant, wanted: NewCredit, field: str) -> None:
    with pytest.raises(BadCredit) as caught:
        credits.submit(ADA, acme, "1", wanted)
    assert caught.value.field == field
    assert not CreditRequest.objects.exists() and not AuditEntry.objects.exists()


def test_keys_are_short_and_plain_and_entries_are_the_tenants_own(acme: Tenant) -> None:
    for key in ("", "x" * 201, "a\0b", "ä"):
        with pytest.raises(BadCredit, match="key"):
            credits.submit(ADA, acme, key, TEN)
    globex = Tenant.objects.create(slug="globex", name="Globex")
    theirs = post(globex, TEN)
    with pytest.raises(NotFound):
        post(acme, NewCredit(kind="reversal", reason="mine", refers_to=theirs.id))
    with pytest.raises(NotAllowed):
        post(Tenant.objects.create(slug=PLATFORM_SLUG, name="Platform"), TEN)


def test_an_archived_tenant_gets_its_money_back_and_nothing_more(acme: Tenant) -> None:
    post(acme, TEN)
    registry.archive(ADA, acme)
    for wanted in (TEN, promotion(1)):
        with pytest.raises(NotAllowed):
            post(acme, wanted)
    post(acme, NewCredit(kind="refund", amount_pico=10 * PICO, reason="they left"))
    assert balance.of(acme.id).total_pico == 0


def test_what_is_left_of_a_promotion_expires_once(acme: Tenant) -> None:
    first, second = post(acme, promotion(5, days=3)), post(acme, promotion(7, days=6))
    post(acme, TEN)
    assert promotions.expire(timezone.now()) == 0
    later = timezone.now() + timedelta(days=4)
    assert (promotions.expire(later), promotions.expire(later)) == (1, 0)
    found = balance.of(acme.id)
    assert [each.promotion_id for each in found.promotions] == [second.id]
    assert books(acme) == {"cash": 10, "prepaid": -10, "promotion": -7, "promotion_cost": 7}
    with pytest.raises(CreditRefused, match=r"0\.00 USD of the promotion are left"):
        post(acme, NewCredit(kind="reversal", reason="why", refers_to=first.id))
    assert AuditEntry.objects.filter(action="credit.expired", tenant=acme).count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_refunds_at_once_take_no_more_than_there_is() -> None:
    acme = Tenant.objects.create(slug="acme", name="Acme")
    post(acme, TEN)
    outcomes: list[str] = []

    def refund(number: int) -> None:
        try:
            credits.submit(ADA, acme, f"{number}", NewCredit(kind="refund", amount_pico=4 * PICO, reason="race"))
            outcomes.append("posted")
        except CreditRefused:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=refund, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert (sorted(outcomes), balance.of(acme.id).prepaid_pico) == (["posted"] * 2 + ["refused"] * 4, 2 * PICO)


def test_a_failed_posting_leaves_nothing(acme: Tenant) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        post(acme, TEN)
        raise RuntimeError
    assert not CreditEntry.objects.exists() and not LedgerEntry.objects.exists()

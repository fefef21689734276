"""Setting plans and assigning them: from which month on, what is fixed, and to whom."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from billing.errors import PlanRefused
from billing.models import Plan, PlanVersion, TenantPlan
from billing.plans import registry, terms
from tenants.audit import Actor
from tenants.errors import BadName, NotFound
from tenants.models import AuditEntry, Tenant
from tests.billing.agreed_plans import assign_from, plan_from

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
FIVE, TEN = (terms.read({"discounts": [{"percent": percent}]}) for percent in (5, 10))


def month_in(months: int) -> date:
    """Return the first day of the month ``months`` from now, in UTC."""
    count = timezone.now().year * 12 + timezone.now().month - 1 + months
    return date(count // 12, count % 12 + 1, 1)


LAST, THIS, NEXT, LATER = (month_in(months) for months in (-1, 0, 1, 2))


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def test_a_version_holds_until_the_next(acme: Tenant) -> None:
    registry.set_terms(ADA, "gold", FIVE, THIS)
    registry.set_terms(ADA, "gold", TEN, LATER)
    registry.assign(ADA, acme, "gold", THIS)
    found = {month: registry.agreed(acme.id, month) for month in (LAST, THIS, NEXT, LATER)}
    assert {month: each and each.terms for month, each in found.items()} == {
        LAST: None,
        THIS: FIVE,
        NEXT: FIVE,
        LATER: TEN,
    }
    assert [(each.action, each.object_id, each.tenant_id) for each in AuditEntry.objects.order_by("id")] == [
        ("plan.set", "gold", None),
        ("plan.set", "gold", None),
        ("plan.assigned", str(acme.id), acme.id),
    ]


def test_what_has_begun_is_fixed_and_what_is_scheduled_may_be_replaced(acme: Tenant) -> None:
    registry.set_terms(ADA, "gold", FIVE, THIS)
    with pytest.raises(PlanRefused, match=f"gold: {THIS:%Y-%m} has begun, and its terms are fixed. Use a later month"):
        registry.set_terms(ADA, "gold", TEN, THIS)
    registry.set_terms(ADA, "gold", FIVE, LATER)
    registry.set_terms(ADA, "gold", TEN, LATER)
    assert [(each.from_month, terms.read(each.terms)) for each in PlanVersion.objects.order_by("from_month")] == [
        (THIS, FIVE),
        (LATER, TEN),
    ]
    registry.assign(ADA, acme, "gold", THIS)
    for name in ("gold", None):
        with pytest.raises(PlanRefused, match="has begun"):
            registry.assign(ADA, acme, name, THIS)
    registry.assign(ADA, acme, None, LATER)
    registry.assign(ADA, acme, "gold", LATER)
    assert [(each.from_month, each.plan is None) for each in TenantPlan.objects.order_by("from_month")] == [
        (THIS, False),
        (LATER, False),
    ]


def test_terms_of_an_earlier_version_are_fixed_too(acme: Tenant) -> None:
    assign_from(LAST, acme, plan_from(LAST, {}))
    with pytest.raises(PlanRefused, match="has begun"):
        registry.set_terms(ADA, "gold", TEN, THIS)
    with pytest.raises(PlanRefused, match="has begun"):
        registry.assign(ADA, acme, None, THIS)


def test_a_past_month_is_refused(acme: Tenant) -> None:
    with pytest.raises(PlanRefused, match=f"gold: {LAST:%Y-%m} is past. Use {THIS:%Y-%m} or a later month"):
        registry.set_terms(ADA, "gold", FIVE, LAST)
    assert not Plan.objects.exists()
    plan_from(LAST, {})
    with pytest.raises(PlanRefused, match="is past"):
        registry.assign(ADA, acme, "gold", LAST)


def test_a_plan_of_one_tenant_is_for_no_other(acme: Tenant) -> None:
    globex = Tenant.objects.create(slug="globex", name="Globex")
    registry.set_terms(ADA, "acme-only", FIVE, THIS, tenant=acme)
    registry.assign(ADA, acme, "acme-only", THIS)
    with pytest.raises(PlanRefused, match=r"it is another tenant's\. Set a plan for globex"):
        registry.assign(ADA, globex, "acme-only", THIS)
    with pytest.raises(PlanRefused, match="it is not of globex alone"):
        registry.set_terms(ADA, "acme-only", FIVE, LATER, tenant=globex)


def test_a_plan_is_in_the_tenants_currency_and_has_terms_in_that_month(acme: Tenant) -> None:
    registry.set_terms(ADA, "euro", FIVE, THIS, currency="EUR")
    registry.set_terms(ADA, "gold", FIVE, LATER)
    for name, month, reason in (
        ("euro", THIS, "it is in EUR, acme pays in USD"),
        ("gold", NEXT, f"its first terms are from {LATER:%Y-%m}. Assign it from then on"),
    ):
        with pytest.raises(PlanRefused, match=reason):
            registry.assign(ADA, acme, name, month)
    with pytest.raises(PlanRefused, match="it is in EUR"):
        registry.set_terms(ADA, "euro", FIVE, LATER, currency="USD")
    with pytest.raises(NotFound):
        registry.assign(ADA, acme, "silver", NEXT)
    with pytest.raises(BadName):
        registry.set_terms(ADA, "Gold plan", FIVE, NEXT)


@pytest.mark.parametrize("again", ["version", "tenant"])
def test_the_database_refuses_two_of_one_month(acme: Tenant, again: str) -> None:
    plan = plan_from(THIS, {})
    assign_from(THIS, acme, plan)
    with pytest.raises(IntegrityError):
        plan_from(THIS, {}) if again == "version" else assign_from(THIS, acme, None)


def test_a_month_begins_on_its_first_day(acme: Tenant) -> None:
    with pytest.raises(IntegrityError, match="plan_version_from_first_day"):
        plan_from(THIS + timedelta(days=1), {})

"""Price versions: added, never changed, audited, and protected from wrong units."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.db import Error, IntegrityError
from django.db.transaction import atomic
from django.utils import timezone

from billing.accounts import account
from billing.errors import PriceExists, PriceInThePast, PriceJump, PriceOutOfRange
from billing.models import Plan, PriceBook, PriceVersion, TenantPlan
from billing.pricing import prices
from billing.pricing.prices import DEMO_RATES
from billing.pricing.rating import Rates
from tenants import policy_epoch
from tenants.audit import SYSTEM
from tenants.database import rls
from tenants.ids import TenantId, created_at, first_id_at, new_id
from tenants.models import AuditEntry, Tenant

pytestmark = pytest.mark.django_db

DOUBLE = Rates(prompt_pico=300_000, cached_prompt_pico=30_000, completion_pico=1_200_000)


def rates_at(tenant_id: TenantId, moment: datetime) -> Rates | None:
    found = prices.table_for([tenant_id], ["demo"]).at(tenant_id, "demo", moment)
    return None if found is None else found.rates


def test_a_price_holds_from_its_moment_until_the_next() -> None:
    book = prices.ensure_price_book()
    first = prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    change = first.effective_from + timedelta(hours=1)
    prices.set_price(SYSTEM, book, "demo", DOUBLE, effective_from=change)
    tenant_id = TenantId(new_id())
    instant = timedelta(microseconds=1)
    assert rates_at(tenant_id, first.effective_from - instant) is None
    assert rates_at(tenant_id, first.effective_from) == DEMO_RATES
    assert rates_at(tenant_id, change - instant) == DEMO_RATES
    assert rates_at(tenant_id, change) == DOUBLE


@pytest.mark.parametrize("microseconds", [0, 1, 999])
def test_a_request_that_runs_is_told_the_price_that_it_will_be_charged(microseconds: int) -> None:
    book, tenant_id = prices.ensure_price_book(), TenantId(new_id())
    first = prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    hour = (first.effective_from + timedelta(hours=1)).replace(microsecond=5000)
    prices.set_price(SYSTEM, book, "demo", DOUBLE, effective_from=hour + timedelta(microseconds=microseconds))
    table = prices.load()
    for milliseconds in (-3_600_001, -1, 0, 1):
        request_id = first_id_at(hour + timedelta(milliseconds=milliseconds))
        charged = table.charged(tenant_id, "demo", created_at(request_id), timezone.now())
        assert charged is not None
        assert table.accepted(tenant_id, "demo", request_id) == charged
    assert table.accepted(tenant_id, "other", new_id()) is None


def test_a_tenants_own_price_wins_and_nobody_else_gets_it() -> None:
    tenant = Tenant.objects.create(slug="own", name="Own")
    own = PriceBook.objects.create(name="own", tenant_id=tenant.id)
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    prices.set_price(SYSTEM, own, "demo", DOUBLE)
    now = timezone.now()
    assert rates_at(TenantId(tenant.id), now) == DOUBLE
    assert rates_at(TenantId(new_id()), now) == DEMO_RATES
    assert prices.table_for([tenant.id], ["other"]).at(tenant.id, "other", now) is None


def test_the_past_keeps_its_price() -> None:
    book = prices.ensure_price_book()
    with pytest.raises(PriceInThePast):
        prices.set_price(
            SYSTEM, book, "demo", DEMO_RATES, effective_from=timezone.now() - timedelta(seconds=1), confirm=True
        )
    version = prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    with pytest.raises(Error, match="only grows"):
        PriceVersion.objects.filter(id=version.id).update(prompt_pico=0)


def test_one_moment_has_one_price() -> None:
    book = prices.ensure_price_book()
    moment = timezone.now() + timedelta(hours=1)
    prices.set_price(SYSTEM, book, "demo", DEMO_RATES, effective_from=moment)
    with pytest.raises(PriceExists):
        prices.set_price(SYSTEM, book, "demo", DOUBLE, effective_from=moment)


@pytest.mark.parametrize(
    ("rates", "token_class"),
    [
        (replace(DEMO_RATES, prompt_pico=1_500_001), "prompt_pico"),
        (replace(DEMO_RATES, completion_pico=59_999), "completion_pico"),
        (replace(DEMO_RATES, cached_prompt_pico=0), "cached_prompt_pico"),
    ],
)
def test_a_change_of_more_than_tenfold_must_be_confirmed(rates: Rates, token_class: str) -> None:
    book = prices.ensure_price_book()
    prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    with pytest.raises(PriceJump) as refused:
        prices.set_price(SYSTEM, book, "demo", rates)
    assert refused.value.token_class == token_class
    assert PriceVersion.objects.count() == 1
    prices.set_price(SYSTEM, book, "demo", rates, confirm=True)


def test_a_tenants_first_own_price_is_compared_with_the_platforms() -> None:
    prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    own = PriceBook.objects.create(name="own", tenant_id=new_id())
    with pytest.raises(PriceJump):
        prices.set_price(SYSTEM, own, "demo", replace(DEMO_RATES, prompt_pico=1))


@pytest.mark.parametrize("rates", [replace(DEMO_RATES, prompt_pico=-1), replace(DEMO_RATES, completion_pico=10**9 + 1)])
def test_a_price_that_could_overflow_an_amount_is_refused(rates: Rates) -> None:
    with pytest.raises(PriceOutOfRange):
        prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", rates, confirm=True)


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        (replace(DEMO_RATES, high_priority_bp=100_001), "high_priority_bp of 100001; allowed: 0 to 100000"),
        (replace(DEMO_RATES, low_priority_bp=-1), "low_priority_bp of -1; allowed"),
        (replace(DEMO_RATES, request_pico=10**12 + 1), "request_pico of 1000000000001 pico"),
        (
            replace(DEMO_RATES, prompt_pico=10**9, high_priority_bp=10_001),
            "prompt_pico of 1000100000 pico at high priority; allowed: 0 to 1000000000",
        ),
    ],
)
def test_a_multiplied_price_that_could_overflow_is_refused_too(rates: Rates, problem: str) -> None:
    with pytest.raises(PriceOutOfRange, match=problem):
        prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", rates, confirm=True)


def test_a_change_is_audited_with_what_was_before() -> None:
    book = prices.ensure_price_book()
    prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    version = prices.set_price(SYSTEM, book, "demo", DOUBLE)
    entry = AuditEntry.objects.get(object_id=str(version.id))
    assert entry.action == "price.set"
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["prompt_pico"], entry.after["prompt_pico"]) == (150_000, 300_000)


def test_demo_prices_are_set_once() -> None:
    prices.ensure_demo_prices(SYSTEM, "demo")
    prices.ensure_demo_prices(SYSTEM, "demo")
    assert PriceVersion.objects.count() == 1


def test_a_tenant_reads_the_platforms_prices_and_its_own_but_no_strangers() -> None:
    mine, stranger = TenantId(new_id()), TenantId(new_id())
    platform = prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    for tenant_id in (mine, stranger):
        Tenant.objects.create(id=tenant_id, slug=tenant_id.hex, name="")
        book = PriceBook.objects.create(name=str(tenant_id), tenant_id=tenant_id)
        prices.set_price(SYSTEM, book, "demo", DOUBLE)
    with rls.as_tenant(mine):
        seen = set(PriceVersion.objects.values_list("id", "book__tenant_id"))
    assert {owner for _, owner in seen} == {None, mine}
    assert platform.id in {version for version, _ in seen}


def test_gateways_are_told_of_a_price_and_load_all_of_them() -> None:
    before = policy_epoch.current()
    made = prices.set_price(SYSTEM, prices.ensure_price_book(), "demo", DEMO_RATES)
    assert policy_epoch.current() == before + 1
    found = prices.load().at(new_id(), "demo", made.effective_from)
    assert found is not None
    assert found.version_id == made.id


def test_the_platforms_prices_are_none_of_a_tenant_that_pays_in_another_currency() -> None:
    book = prices.ensure_price_book()
    first = prices.set_price(SYSTEM, book, "demo", DEMO_RATES)
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    assert rates_at(TenantId(tenant.id), first.effective_from) == DEMO_RATES
    before = policy_epoch.current()
    account.change(SYSTEM, tenant, currency="EUR")
    assert policy_epoch.current() > before  # gateways read prices again
    tenant.refresh_from_db()
    table = prices.load()
    assert table.at(tenant.id, "demo", timezone.now()) is None
    assert table.accepted(tenant.id, "demo", new_id()) is None
    assert table.scheduled(tenant.id, "demo", timezone.now()) == []
    assert table.charged(tenant.id, "demo", timezone.now(), timezone.now()) is None
    assert prices.missing(tenant) == ["demo"]
    assert "demo has no price in EUR" in account.price_notice(tenant)
    own = prices.set_price(SYSTEM, prices.book_of(tenant), "demo", DOUBLE)
    assert rates_at(TenantId(tenant.id), own.effective_from) == DOUBLE
    assert (prices.missing(tenant), account.price_notice(tenant)) == ([], "")


def test_the_database_refuses_what_is_in_another_currency_than_the_account() -> None:
    tenant = Tenant.objects.create(slug="acme", name="Acme", currency="EUR")
    with pytest.raises(IntegrityError, match="it is in USD, and the account of the tenant is in EUR"), atomic():
        PriceBook.objects.create(name="acme", tenant_id=tenant.id, currency="USD")
    book = PriceBook.objects.create(name="acme", tenant_id=tenant.id, currency="EUR")
    with pytest.raises(IntegrityError, match="the account of the tenant is in EUR"), atomic():
        PriceBook.objects.filter(id=book.id).update(currency="USD")
    plan = Plan.objects.create(name="gold", currency="USD")
    month = datetime(2027, 1, 1).date()
    with pytest.raises(IntegrityError, match="it is in USD, and the account of the tenant is in EUR"), atomic():
        TenantPlan.objects.create(tenant_id=tenant.id, plan=plan, from_month=month)
    TenantPlan.objects.create(tenant_id=tenant.id, plan=None, from_month=month)

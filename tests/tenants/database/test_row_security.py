"""A tenant reads only its own rows, and changes nothing.

The tables are found in PostgreSQL's catalogue, so a table or partition made tomorrow is tested too: it must have
rows here (ROWS) or be closed to tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from uuid import UUID

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from billing.ledger import daily_charges
from billing.models import (
    BillingAccount,
    BudgetAlert,
    BudgetWindow,
    BypassRollup,
    CreditEntry,
    CreditRequest,
    DailyCharge,
    DailyRollup,
    DailyTenantRollup,
    FinalStatement,
    HalfHourlyTenantRollup,
    LatePosting,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    MonthLine,
    MonthProjectLine,
    MonthTermsLine,
    Plan,
    PlanVersion,
    PriceBook,
    PriceVersion,
    TenantPlan,
    UsageRecord,
    UsageRollup,
)
from catalogue.models import Model
from notifications.models import Delivery, DeliveryAttempt, Event, WebhookEndpoint
from reserved_capacity.models import CapacityReservation, ReservedHour
from retention.models import Erasure
from tenants.database.rls import TENANT_ROLE, as_tenant
from tenants.identity.models import SignInProvider
from tenants.ids import TenantId, new_id
from tenants.models import (
    ApiKey,
    AuditEntry,
    Budget,
    CachePurge,
    CacheSetting,
    ContentEntry,
    Limit,
    Membership,
    Project,
    Tenant,
    TenantPolicy,
    User,
)
from tenants.people import invitations
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer
from tests.tenants.database import invoice_rows, stripe_rows
from tests.tenants.database.invoice_rows import closing
from workers.models import DeferredRequest

pytestmark = pytest.mark.django_db

#: Expression for a row's owner, where it is not the column tenant_id.
OWNERS = {
    "tenants_tenant": "id",
    "catalogue_model": "owner_id",
    "billing_ledgerentry": "(SELECT tenant_id FROM billing_ledgeraccount AS account WHERE account.id = account_id)",
    "billing_priceversion": "(SELECT tenant_id FROM billing_pricebook AS book WHERE book.id = book_id)",
    "billing_plan": "(SELECT min(tenant_id::text)::uuid FROM billing_tenantplan WHERE plan_id = billing_plan.id)",
    "billing_planversion": "(SELECT min(tenant_id::text)::uuid FROM billing_tenantplan AS of WHERE of.plan_id ="
    " billing_planversion.plan_id)",
}
#: Conditions for rows that every tenant may see.
EVERYBODYS = {
    "catalogue_model": "visibility = 'public'",
    "billing_pricebook": "tenant_id IS NULL",
    "billing_priceversion": f"{OWNERS['billing_priceversion']} IS NULL",
}
#: What every tenant may read, because it is about nobody: what is in daily roll-ups.
ABOUT_NOBODY = {"billing_foldedday", "billing_foldedhalfhour"}
NOBODY = TenantId(UUID(int=0))


def usage(customer: Customer, identity: UUID) -> UsageRecord:
    """Write one usage record."""
    now = timezone.now()
    return UsageRecord.objects.create(
        id=identity,
        tenant_id=customer.tenant.id,
        project_id=customer.project.id,
        key_id=customer.key.id,
        endpoint="/v1/completions",
        model_name="demo",
        revision_id=new_id(),
        started_at=now,
        finished_at=now,
        state="complete",
        http_status=200,
        stream=False,
        cache_result="miss",
        prompt_tokens=1,
        cached_prompt_tokens=0,
        completion_tokens=1,
        tokens_source="engine",
        duration_ms=1.0,
    )


def ledger_entries(customer: Customer) -> list[LedgerEntry]:
    """Post one transaction that sums to zero."""
    posted = LedgerTransaction.objects.create(tenant_id=customer.tenant.id, kind="usage", source=str(new_id()))
    return [
        LedgerEntry.objects.create(
            transaction=posted,
            account=LedgerAccount.objects.create(tenant_id=customer.tenant.id, kind=kind, currency="EUR"),
            amount_pico=amount,
        )
        for kind, amount in (("receivable", 5), ("revenue", -5))
    ]


def price(book: PriceBook) -> PriceVersion:
    """Write one price."""
    return PriceVersion.objects.create(
        book=book,
        model_name="demo",
        prompt_pico=1,
        cached_prompt_pico=1,
        completion_pico=1,
        effective_from=datetime(2026, 1, 1, tzinfo=UTC),
    )


def plan(customer: Customer) -> Plan:
    """Write a plan, once, and assign it."""
    found, created = Plan.objects.get_or_create(name=customer.tenant.slug, defaults={"currency": "USD"})
    if created:
        TenantPlan.objects.create(tenant_id=customer.tenant.id, plan=found, from_month=date(2026, 1, 1))
    return found


def event(customer: Customer) -> Event:
    """Write one event."""
    return Event.objects.create(
        type="hearth.budget_threshold.reached.v1",
        tenant=customer.tenant,
        subject="budget/1",
        data={},
        dedupe_key=str(new_id()),
    )


def endpoint(customer: Customer) -> WebhookEndpoint:
    """Write one webhook endpoint."""
    return WebhookEndpoint.objects.create(tenant=customer.tenant, url="https://example.com/", created_by="ada")


def delivery(customer: Customer) -> Delivery:
    """Write one delivery."""
    return Delivery.objects.create(endpoint=endpoint(customer), event=event(customer), tenant=customer.tenant)


def reservation(customer: Customer) -> CapacityReservation:
    """Write a reservation."""
    return CapacityReservation.objects.create(
        tenant=customer.tenant,
        deployment="demo",
        model_names=["demo"],
        slots=1,
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        currency="USD",
        slot_hour_pico=1,
    )


#: Functions that create a row of each table that a tenant may read.
ROWS: dict[str, Callable[[Customer], object]] = {
    "tenants_tenant": lambda customer: customer.tenant,
    "tenants_tenantpolicy": lambda customer: TenantPolicy.objects.get(tenant=customer.tenant),
    "tenants_project": lambda customer: customer.project,
    "tenants_apikey": lambda customer: customer.key,
    "tenants_auditentry": lambda customer: AuditEntry.objects.filter(tenant=customer.tenant).first(),
    "tenants_limit": lambda customer: Limit.objects.create(tenant=customer.tenant, requests_per_minute=1),
    "tenants_cachesetting": lambda customer: CacheSetting.objects.create(
        tenant=customer.tenant, project=customer.project, mode="off"
    ),
    "identity_signinprovider": lambda customer: SignInProvider.objects.create(
        tenant=customer.tenant, issuer="https://example.com", client_id="hearth", secret_sealed=b"", pepper_version=1
    ),
    "tenants_cachepurge": lambda customer: CachePurge.objects.create(tenant=customer.tenant),
    "tenants_budget": lambda customer: Budget.objects.create(tenant=customer.tenant, limit_pico=1),
    "tenants_membership": lambda customer: Membership.objects.create(
        tenant=customer.tenant, user=User.objects.create_user(customer.tenant.slug)
    ),
    "tenants_invitation": lambda customer: invitations.invite(OPERATOR, customer.tenant, "viewer"),
    "tenants_contententry": lambda customer: ContentEntry.objects.create(
        id=new_id(), tenant=customer.tenant, project=customer.project, sealed=b"sealed", pepper_version=1, bytes=6
    ),
    "catalogue_model": lambda customer: Model.objects.create(name=customer.tenant.slug, owner=customer.tenant),
    "billing_usagerecord": lambda customer: usage(customer, new_id()),
    "billing_usagerecord_default": lambda customer: usage(customer, new_id()),
    "billing_usagerollup": lambda customer: UsageRollup.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        tenant_id=customer.tenant.id,
        project_id=customer.project.id,
        model_name="demo",
    ),
    "billing_dailycharge": lambda customer: DailyCharge.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        tenant_id=customer.tenant.id,
        project_id=customer.project.id,
        model_name="demo",
        currency="USD",
        charge="tokens",
        priority="standard",
        **dict.fromkeys(daily_charges.SUMS, 1),
    ),
    "billing_dailyrollup": lambda customer: DailyRollup.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        tenant_id=customer.tenant.id,
        project_id=customer.project.id,
        model_name="demo",
    ),
    "billing_dailytenantrollup": lambda customer: DailyTenantRollup.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC), tenant_id=customer.tenant.id, model_name="demo"
    ),
    "billing_halfhourlytenantrollup": lambda customer: HalfHourlyTenantRollup.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC), tenant_id=customer.tenant.id, model_name="demo"
    ),
    "billing_bypassrollup": lambda customer: BypassRollup.objects.create(
        starts_at=datetime(2026, 1, 1, tzinfo=UTC), tenant_id=customer.tenant.id, reason="sampled"
    ),
    "billing_finalstatement": lambda customer: FinalStatement.objects.create(
        tenant_id=customer.tenant.id,
        year=2026,
        month=1,
        first_id=new_id(),
        behind_id=new_id(),
        document={},
    ),
    "billing_billingaccount": lambda customer: BillingAccount.objects.update_or_create(
        tenant_id=customer.tenant.id, defaults={"legal_name": customer.tenant.name}
    ),
    "billing_billingmonth": closing,
    "billing_monthline": lambda customer: MonthLine.objects.create(
        closing=closing(customer),
        tenant_id=customer.tenant.id,
        position=0,
        model_name="demo",
        token_class="prompt",
        quantity=2,
        unit_price_pico=3,
        amount_pico=6,
    ),
    "billing_monthprojectline": lambda customer: MonthProjectLine.objects.create(
        closing=closing(customer),
        tenant_id=customer.tenant.id,
        project_id=customer.tenant.id,
        position=0,
        model_name="demo",
        token_class="prompt",
        priority="standard",
        quantity=2,
        unit_price_pico=3,
        amount_pico=6,
    ),
    "billing_plan": plan,
    "reserved_capacity_capacityreservation": reservation,
    "reserved_capacity_reservedhour": lambda customer: ReservedHour.objects.create(
        reservation=reservation(customer),
        tenant_id=customer.tenant.id,
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        slots=1,
        available_seconds=0,
    ),
    "billing_planversion": lambda customer: PlanVersion.objects.create(
        plan=plan(customer), from_month=date(2026, 1, 1), terms={}
    ),
    "billing_tenantplan": lambda customer: TenantPlan.objects.create(
        tenant_id=customer.tenant.id, plan=plan(customer), from_month=date(2026, 2, 1)
    ),
    "billing_monthtermsline": lambda customer: MonthTermsLine.objects.create(
        closing=closing(customer),
        transaction=LedgerTransaction.objects.create(
            tenant_id=customer.tenant.id, kind="terms", source=f"terms {customer.tenant.slug}"
        ),
        tenant_id=customer.tenant.id,
        billed_month="2026-01",
        position=0,
        kind="discount",
        text="10 % less",
        amount_pico=-1,
    ),
    **invoice_rows.ROWS,
    **stripe_rows.ROWS,
    "billing_lateposting": lambda customer: LatePosting.objects.create(
        transaction=LedgerTransaction.objects.create(
            tenant_id=customer.tenant.id, kind="usage", source=f"late {customer.tenant.slug}"
        ),
        tenant_id=customer.tenant.id,
        month="2026-01",
        billed_month="2026-02",
    ),
    "billing_creditrequest": lambda customer: CreditRequest.objects.create(
        tenant_id=customer.tenant.id,
        key="payment-1",
        kind="top_up",
        amount_pico=5,
        currency="USD",
        needs_approval=False,
        state="posted",
        requested_by="ada",
    ),
    "billing_creditentry": lambda customer: CreditEntry.objects.create(
        tenant_id=customer.tenant.id,
        kind="top_up",
        amount_pico=5,
        currency="USD",
        transaction=LedgerTransaction.objects.create(
            tenant_id=customer.tenant.id, kind="credit", source=f"credit {customer.tenant.slug}"
        ),
    ),
    "billing_budgetwindow": lambda customer: BudgetWindow.objects.create(
        budget_id=new_id(), tenant_id=customer.tenant.id, starts_at=datetime(2026, 1, 1, tzinfo=UTC)
    ),
    "billing_budgetalert": lambda customer: BudgetAlert.objects.create(
        budget_id=new_id(),
        tenant_id=customer.tenant.id,
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        percent=80,
        spent_pico=8,
        limit_pico=10,
    ),
    "billing_ledgeraccount": lambda customer: LedgerAccount.objects.create(
        tenant_id=customer.tenant.id, kind="receivable", currency="USD"
    ),
    "billing_ledgertransaction": lambda customer: LedgerTransaction.objects.create(
        tenant_id=customer.tenant.id, kind="usage", source=customer.tenant.slug
    ),
    "billing_ledgerentry": ledger_entries,
    "billing_pricebook": lambda customer: PriceBook.objects.create(
        name=customer.tenant.slug, tenant_id=customer.tenant.id
    ),
    "billing_priceversion": lambda customer: price(PriceBook.objects.get(tenant_id=customer.tenant.id)),
    "notifications_event": event,
    "notifications_webhookendpoint": endpoint,
    "notifications_delivery": delivery,
    "notifications_deliveryattempt": lambda customer: DeliveryAttempt.objects.create(
        delivery=delivery(customer), tenant=customer.tenant, began_at=timezone.now(), duration_ms=1
    ),
    "retention_erasure": lambda customer: Erasure.objects.create(tenant=customer.tenant),
    "workers_deferredrequest": lambda customer: DeferredRequest.objects.create(
        tenant=customer.tenant,
        project=customer.project,
        key=customer.key,
        endpoint="/v1/completions",
        body=b"{}",
        expires_at=timezone.now(),
    ),
}


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[tuple[Customer, Customer]]:
    """Both tenants have a row in every table that a tenant may read; shared rows exist where they are allowed.

    Made once, in a transaction around those of the tests.
    """
    with django_db_blocker.unblock(), transaction.atomic():
        acme, globex = customers.create("acme"), customers.create("globex")
        for customer in (acme, globex):
            for make in ROWS.values():
                make(customer)
        price(PriceBook.objects.create(name="everybody's"))
        Model.objects.create(name="everybody's", owner=globex.tenant, visibility=Model.Visibility.PUBLIC)
        yield acme, globex
        transaction.set_rollback(True)


@pytest.fixture
def acme(world: tuple[Customer, Customer]) -> Customer:
    return world[0]


def relations(condition: str) -> list[str]:
    """Return the tables, partitions and views of the schema that meet a condition."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
                AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {condition} ORDER BY c.relname"""
        )
        return [name for (name,) in cursor.fetchall()]


def readable() -> list[str]:
    """Return what the tenant role may read."""
    return relations(f"has_table_privilege('{TENANT_ROLE}', c.oid, 'SELECT')")


def seen(table: str) -> set[object]:
    """Return the ids of all rows visible to the current role."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table}")
        return {identity for (identity,) in cursor.fetchall()}


def owned(table: str, owner: UUID) -> set[object]:
    """Return the ids of an owner's rows, read with a role that sees all."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE {OWNERS.get(table, 'tenant_id')} = %s", [owner])
        return {identity for (identity,) in cursor.fetchall()}


def everybodys(table: str) -> set[object]:
    """Return the ids of rows visible to every tenant, read with a role that sees all."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {table} WHERE {EVERYBODYS.get(table, 'false')}")
        return {identity for (identity,) in cursor.fetchall()}


def test_every_table_a_tenant_may_read_is_tried_here() -> None:
    assert readable() == sorted({*ROWS, *ABOUT_NOBODY})


def test_every_table_a_tenant_may_read_is_protected_partitions_too() -> None:
    assert relations(f"has_table_privilege('{TENANT_ROLE}', c.oid, 'SELECT') AND NOT c.relrowsecurity") == []


def test_every_model_that_belongs_to_a_tenant_is_protected_or_closed_to_tenants() -> None:
    belonging = {
        model._meta.db_table
        for model in apps.get_models()
        if "tenant_id" in {field.column for field in model._meta.concrete_fields}
    }
    unprotected = set(relations("NOT c.relrowsecurity"))
    assert belonging & unprotected == set()


@pytest.mark.parametrize("table", ROWS)
def test_a_tenant_sees_its_own_rows_and_everybodys_and_no_others(world: tuple[Customer, Customer], table: str) -> None:
    acme, globex = world
    own, strangers, shared = owned(table, acme.tenant.id), owned(table, globex.tenant.id), everybodys(table)
    assert own
    assert strangers - shared
    assert bool(shared) == (table in EVERYBODYS)
    with as_tenant(TenantId(acme.tenant.id)):
        assert seen(table) == own | shared


@pytest.mark.parametrize("table", ROWS)
def test_a_tenant_that_does_not_exist_sees_nothing(world: tuple[Customer, Customer], table: str) -> None:
    shared = everybodys(table)
    with as_tenant(NOBODY):
        assert seen(table) == shared


@pytest.mark.parametrize("table", ROWS)
@pytest.mark.parametrize("setting", [None, "", "'; DROP TABLE tenants_tenant; --"])
def test_the_tenant_role_without_a_tenant_sees_nothing(
    world: tuple[Customer, Customer], table: str, setting: str | None
) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        if setting is not None:
            cursor.execute("SELECT set_config('hearth.tenant_id', %s, true)", [setting])
        cursor.execute(f"SET LOCAL ROLE {TENANT_ROLE}")
        cursor.execute(f"SELECT 1 FROM {table}")


def test_a_tenant_may_write_nowhere() -> None:
    for privilege in ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"):
        assert relations(f"has_table_privilege('{TENANT_ROLE}', c.oid, '{privilege}')") == []
        if privilege in {"INSERT", "UPDATE", "REFERENCES"}:
            assert relations(f"has_any_column_privilege('{TENANT_ROLE}', c.oid, '{privilege}')") == []


@pytest.mark.parametrize("table", ROWS)
def test_a_tenants_writes_are_refused_by_the_database(world: tuple[Customer, Customer], table: str) -> None:
    acme, _ = world
    before = owned(table, acme.tenant.id)
    for statement in (
        f"UPDATE {table} SET id = id",
        f"DELETE FROM {table}",
        f"INSERT INTO {table} DEFAULT VALUES",
    ):
        with (
            pytest.raises(DatabaseError, match=f"permission denied for table {table}"),
            as_tenant(TenantId(acme.tenant.id)),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
    assert owned(table, acme.tenant.id) == before


def test_the_tenant_role_can_neither_log_in_nor_step_around_the_rules() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT rolcanlogin, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = %s",
            [TENANT_ROLE],
        )
        assert cursor.fetchone() == (False, False, False, False, False)


def role_and_tenant() -> tuple[str, str]:
    """Return the connection's current role."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, coalesce(current_setting('hearth.tenant_id', true), '')")
        found = cursor.fetchone()
        assert found is not None
        return str(found[0]), str(found[1])


def test_the_role_is_given_back_when_the_block_ends(acme: Customer) -> None:
    before = role_and_tenant()
    with as_tenant(TenantId(acme.tenant.id)):
        assert role_and_tenant() == (TENANT_ROLE, str(acme.tenant.id))
    assert role_and_tenant() == before
    Tenant.objects.filter(id=acme.tenant.id).update(name="written again")


def test_the_role_is_given_back_when_the_block_raises(acme: Customer) -> None:
    before = role_and_tenant()
    with pytest.raises(ZeroDivisionError), as_tenant(TenantId(acme.tenant.id)):
        raise ZeroDivisionError
    assert role_and_tenant() == before


def test_an_error_of_the_database_inside_the_block_is_the_one_that_is_told(acme: Customer) -> None:
    before = role_and_tenant()
    denied = pytest.raises(DatabaseError, match="permission denied for table tenants_user")
    with denied, as_tenant(TenantId(acme.tenant.id)):
        User.objects.exists()
    assert role_and_tenant() == before


def test_a_tenant_reads_its_own_rows_through_the_orm(acme: Customer) -> None:
    with as_tenant(TenantId(acme.tenant.id)):
        assert list(Project.objects.all()) == [acme.project]
        assert list(ApiKey.objects.all()) == [acme.key]

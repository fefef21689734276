"""Migrations that convert data, in both directions."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from tenants import registry
from tenants.audit import Actor
from tenants.caller_limits import CacheTerms
from tenants.ids import new_id
from tenants.keys import keys
from tenants.models import Budget, Limit, PolicyEpoch, User
from tenants.policy import budgets, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.registry import Policy
from tenants.snapshot import snapshot
from tests.tenants import customers
from tests.tenants.customers import OPERATOR


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_requests_per_minute_move_from_the_policy_into_a_limit_and_back() -> None:
    acme, globex = customers.create("acme").tenant, customers.create("globex").tenant
    limits.set_limit(OPERATOR, PolicyTarget(tenant=globex), LimitValues(requests_per_minute=7, tokens_per_minute=100))
    try:
        call_command("migrate", "tenants", "0004", verbosity=0)
        assert in_policies() == {"acme": None, "globex": 7}
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO tenants_tenantpolicy (id, tenant_id, version, cache_mode, cache_ttl_seconds, cache_scope,"
                " salt_epoch, requests_per_minute) VALUES (%s, %s, 2, 'all', 60, 'tenant', 1, 0)",
                [new_id(), acme.id],
            )
    finally:
        call_command("migrate", verbosity=0)
    found = {limit.tenant.slug: limits.values_of(limit) for limit in Limit.objects.select_related("tenant")}
    assert found == {
        "acme": LimitValues(requests_per_minute=0),
        "globex": LimitValues(requests_per_minute=7, tokens_per_minute=100),
    }


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_keys_that_ask_for_answers_gain_the_cache_and_an_older_process_goes_on_beside_it() -> None:
    PolicyEpoch.objects.get_or_create(id=1)  # a flush deletes it
    acme, globex = customers.create("acme"), customers.create("globex")
    keys.change(OPERATOR, globex.key, scopes=["management:read"])
    try:
        call_command("migrate", "tenants", "0005", verbosity=0)
        assert scopes() == {"acme": {"inference"}, "globex": {"management:read"}}
    finally:
        call_command("migrate", verbosity=0)
    assert scopes() == {"acme": set(keys.DEFAULT_SCOPES), "globex": {"management:read", "management:tenant"}}
    assert snapshot.load().authenticate(acme.secret).cache == CacheTerms()
    with connection.cursor() as cursor:  # the columns of the older schema
        cursor.execute(
            "INSERT INTO tenants_tenantpolicy (id, tenant_id, version, cache_mode, cache_ttl_seconds, cache_scope,"
            " salt_epoch) VALUES (%s, %s, 2, 'all', 60, 'tenant', 1)",
            [new_id(), acme.tenant.id],
        )
    assert snapshot.load().authenticate(acme.secret).cache == CacheTerms(mode="all", ttl_seconds=60)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_earlier_tenants_get_the_default_queue_terms_and_an_older_process_goes_on_beside_it() -> None:
    PolicyEpoch.objects.get_or_create(id=1)  # a flush takes it
    acme, globex = customers.create("acme"), customers.create("globex")
    registry.set_policy(OPERATOR, acme.tenant, queue_seconds=5, idempotency_bytes_per_hour=7)
    try:
        call_command("migrate", "tenants", "0007", verbosity=0)
    finally:
        call_command("migrate", verbosity=0)
    assert snapshot.load().authenticate(acme.secret).policy == Policy()
    with connection.cursor() as cursor:  # the columns that it knows
        cursor.execute(
            "INSERT INTO tenants_tenantpolicy (id, tenant_id, version, cache_mode, cache_ttl_seconds, cache_scope,"
            " salt_epoch) VALUES (%s, %s, 2, 'all', 60, 'tenant', 1)",
            [new_id(), globex.tenant.id],
        )
    assert snapshot.load().authenticate(globex.secret).policy == Policy(cache_mode="all", cache_ttl_seconds=60)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_the_audit_log_says_who_set_earlier_bounds() -> None:
    PolicyEpoch.objects.get_or_create(id=1)  # a flush takes it
    acme = customers.create("acme")
    owner = Actor(kind="user", name="olga", user=User.objects.create(username="olga"))
    key = Actor(kind="key", name=acme.key.public_id)
    one = LimitValues(requests_per_minute=1)
    for actor, model in ((OPERATOR, "a"), (owner, "b"), (key, "c")):
        limits.set_limit(actor, PolicyTarget(tenant=acme.tenant, key=acme.key, model_name=model), one)
    budgets.create(owner, PolicyTarget(tenant=acme.tenant, key=acme.key), BudgetTerms(limit_pico=1))
    Limit.objects.create(tenant=acme.tenant, model_name="d", requests_per_minute=1)
    try:
        call_command("migrate", "tenants", "0010", verbosity=0)
    finally:
        call_command("migrate", verbosity=0)
    found = {limit.model_name: (limit.set_by, limit.set_by_key) for limit in Limit.objects.all()}
    assert found == {
        "a": ("operator", ""), "b": ("owner", ""), "c": ("key", acme.key.public_id), "d": ("operator", ""),
    }  # fmt: skip
    assert Budget.objects.get().set_by == "owner"


def scopes() -> dict[str, set[str]]:
    """Return the scopes of each tenant's key."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT slug, scopes FROM tenants_apikey JOIN tenants_tenant AS tenant ON tenant.id = tenant_id")
        return {slug: set(found) for slug, found in cursor.fetchall()}


def in_policies() -> dict[str, int | None]:
    """Return the policies that were in force before."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (slug) slug, requests_per_minute FROM tenants_tenantpolicy AS policy"
            " JOIN tenants_tenant AS tenant ON tenant.id = tenant_id ORDER BY slug, policy.version DESC"
        )
        return dict(cursor.fetchall())

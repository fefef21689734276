"""Tenants, projects and policy versions."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.utils import DatabaseError, IntegrityError

from tenants import registry
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.models import AuditEntry, Project, Tenant, TenantPolicy
from tenants.registry import Policy
from tests.tenants.customers import OPERATOR, Customer


def versions(tenant: Tenant) -> list[tuple[int, str]]:
    """Return a tenant's policy versions and their cache modes."""
    return list(TenantPolicy.objects.filter(tenant=tenant).order_by("version").values_list("version", "cache_mode"))


def test_a_new_tenant_has_a_policy_and_a_default_project(db: None) -> None:
    policy = Policy(
        cache_mode="all",
        cache_ttl_seconds=60,
        cache_scope="key",
        salt_epoch=3,
        queue_seconds=1,
        queue_requests=2,
        queue_bytes=3,
        idempotency_bytes_per_hour=4,
        session_headers=("x-thread-id", "x-task"),
        session_ttl_seconds=5,
        session_affinity="strict",
        priority="low",
        weight=5,
    )
    tenant = registry.create_tenant(OPERATOR, slug="acme", name="Acme", policy=policy)
    first = registry.policy_of(tenant)
    assert first.version == 1
    fields = {field: getattr(first, field) for field in registry.POLICY_FIELDS}
    assert Policy(**fields | {"session_headers": tuple(first.session_headers)}) == policy
    assert list(Project.objects.filter(tenant=tenant).values_list("slug", flat=True)) == ["default"]


@pytest.mark.parametrize("slug", ["", "Acme", "a b", "-acme", "acme-", "ä", "a" * 64, "acme\n"])
def test_a_slug_that_is_not_allowed_is_refused_and_nothing_is_made(db: None, slug: str) -> None:
    with pytest.raises(BadName) as refused:
        registry.create_tenant(OPERATOR, slug=slug, name="x")
    assert (refused.value.kind, refused.value.name) == ("tenant", slug)
    assert not Tenant.objects.exists()


@pytest.mark.parametrize("slug", ["a", "0", "a-b", "a" * 63])
def test_a_slug_of_letters_digits_and_dashes_is_allowed(db: None, slug: str) -> None:
    assert registry.create_tenant(OPERATOR, slug=slug, name="x").slug == slug


def test_a_taken_slug_is_refused_and_the_transaction_goes_on(acme: Customer) -> None:
    with pytest.raises(AlreadyExists) as refused:
        registry.create_tenant(OPERATOR, slug="acme", name="Again")
    assert (refused.value.kind, refused.value.name) == ("tenant", "acme")
    with pytest.raises(AlreadyExists):
        registry.create_project(OPERATOR, acme.tenant, slug="default", name="Again")
    assert Tenant.objects.count() == 1


def test_two_tenants_may_have_projects_of_one_name(acme: Customer, globex: Customer) -> None:
    for customer in (acme, globex):
        registry.create_project(OPERATOR, customer.tenant, slug="search", name="Search")
    assert Project.objects.filter(slug="search").count() == 2


def test_each_change_of_policy_is_a_new_version_and_the_old_one_stays(acme: Customer) -> None:
    changed = registry.set_policy(OPERATOR, acme.tenant, cache_mode="all")
    assert (changed.version, changed.cache_mode, changed.cache_ttl_seconds) == (2, "all", 3600)
    assert registry.policy_of(acme.tenant) == changed
    assert versions(acme.tenant) == [(1, "deterministic"), (2, "all")]


def test_a_policy_that_does_not_differ_makes_no_version(acme: Customer) -> None:
    same = registry.set_policy(OPERATOR, acme.tenant, cache_mode="deterministic")
    assert (same.version, versions(acme.tenant)) == (1, [(1, "deterministic")])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cache_mode", "sometimes"),
        ("cache_mode", None),
        ("cache_scope", "user"),
        ("requests_per_minute", 1),
        ("cache_ttl_seconds", None),
        ("cache_ttl_seconds", 1.5),
        ("cache_ttl_seconds", True),
        ("cache_ttl_seconds", "10"),
        ("cache_ttl_seconds", -1),
        ("salt_epoch", None),
        ("salt_epoch", 2**31),
        ("queue_seconds", 3601),
        ("queue_seconds", 0.5),
        ("queue_seconds", None),
        ("queue_requests", -1),
        ("queue_requests", 10**6 + 1),
        ("queue_bytes", 2**40 + 1),
        ("idempotency_bytes_per_hour", None),
        ("idempotency_bytes_per_hour", 2**40 + 1),
        ("session_headers", None),
        ("session_headers", "x-session-id"),
        ("session_headers", ["x-a"] + [f"x-{number}" for number in range(8)]),
        ("session_headers", [""]),
        ("session_headers", ["x session"]),
        ("session_headers", ["x-sessión"]),
        ("session_headers", ["x" * 65]),
        ("session_headers", [7]),
        ("session_headers", ["X-API-Key"]),
        ("session_headers", ["authorization"]),
        ("session_ttl_seconds", 7 * 24 * 3600 + 1),
        ("session_ttl_seconds", None),
        ("session_affinity", "always"),
        ("priority", "urgent"),
        ("weight", 0),
        ("weight", 1001),
        ("a_field_of_nobody", 1),
    ],
)
def test_a_policy_value_that_is_not_allowed_is_refused_by_name(acme: Customer, field: str, value: Any) -> None:
    with pytest.raises(BadName) as refused:
        registry.set_policy(OPERATOR, acme.tenant, **{field: value})
    assert field in {refused.value.kind, refused.value.name}
    assert versions(acme.tenant) == [(1, "deterministic")]


def test_headers_that_name_a_session_are_kept_once_and_as_requests_carry_them(acme: Customer) -> None:
    same = registry.set_policy(OPERATOR, acme.tenant, session_headers=["X-Session-ID", "x-session-id"])
    assert (same.version, same.session_headers) == (1, ["x-session-id"])
    none = registry.set_policy(OPERATOR, acme.tenant, session_headers=[])
    assert (none.version, registry.policy_of(acme.tenant).session_headers) == (2, [])
    entry = AuditEntry.objects.get(action="policy.changed")
    assert (entry.before or {})["session_headers"] == ["x-session-id"]
    assert (entry.after or {})["session_headers"] == []


def test_what_was_stored_under_an_earlier_salt_epoch_is_never_found_again(acme: Customer) -> None:
    registry.set_policy(OPERATOR, acme.tenant, salt_epoch=7)
    with pytest.raises(BadName) as refused:
        registry.set_policy(OPERATOR, acme.tenant, salt_epoch=6)
    assert (refused.value.kind, refused.value.allowed) == ("salt_epoch", "7 or more")
    assert registry.set_policy(OPERATOR, acme.tenant, salt_epoch=7, cache_mode="all").salt_epoch == 7


def test_a_tenant_cannot_begin_with_a_policy_that_is_not_allowed(db: None) -> None:
    with pytest.raises(BadName):
        registry.create_tenant(OPERATOR, slug="acme", name="Acme", policy=Policy(cache_mode="sometimes"))
    assert not Tenant.objects.exists()


@pytest.mark.parametrize(
    "change", ["UPDATE tenants_tenantpolicy SET cache_mode = 'all'", "DELETE FROM tenants_tenantpolicy"]
)
def test_the_database_refuses_to_change_a_policy_version(acme: Customer, change: str) -> None:
    with connection.cursor() as cursor, pytest.raises(DatabaseError, match="tenants_tenantpolicy only grows"):
        cursor.execute(change)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_seconds", 3601),
        ("queue_requests", 10**6 + 1),
        ("queue_bytes", -1),
        ("idempotency_bytes_per_hour", -1),
        ("session_ttl_seconds", 7 * 24 * 3600 + 1),
        ("weight", 0),
        ("weight", 1001),
        ("priority", "urgent"),
    ],
)
def test_the_database_refuses_terms_out_of_range(acme: Customer, field: str, value: Any) -> None:
    with pytest.raises(IntegrityError, match=field.removesuffix("_per_hour").removesuffix("_seconds")):
        TenantPolicy.objects.create(tenant=acme.tenant, version=2, **{field: value})


def test_an_archived_tenant_stays_archived(acme: Customer) -> None:
    archived = registry.archive(OPERATOR, acme.tenant)
    assert archived.archived_at is not None
    assert registry.archive(OPERATOR, acme.tenant).archived_at == archived.archived_at
    for change in (registry.suspend, registry.resume):
        with pytest.raises(NotAllowed) as refused:
            change(OPERATOR, acme.tenant)
        assert (refused.value.name, refused.value.state) == ("acme", "archived")
    with pytest.raises(NotAllowed):
        registry.create_project(OPERATOR, archived, slug="late", name="Late")


def test_a_tenant_is_found_by_slug_and_else_named_as_missing(acme: Customer) -> None:
    assert registry.find_tenant("acme") == acme.tenant
    with pytest.raises(NotFound) as missing:
        registry.find_tenant("initech")
    assert (missing.value.kind, missing.value.name) == ("tenant", "initech")

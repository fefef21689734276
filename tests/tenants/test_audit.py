"""Every change is audited with its actor, in its own transaction, and the audit log is append-only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError

from tenants import audit, policy_epoch, registry
from tenants.audit import Actor
from tenants.keys import keys, tokens
from tenants.models import AuditEntry, Project, Tenant, User
from tenants.policy import budgets, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.tenants.customers import OPERATOR, Customer

CHANGES: dict[str, Callable[[Customer], object]] = {
    "tenant.created": lambda acme: registry.create_tenant(OPERATOR, slug="new", name="New"),
    "project.created": lambda acme: registry.create_project(OPERATOR, acme.tenant, slug="new", name="New"),
    "policy.changed": lambda acme: registry.set_policy(OPERATOR, acme.tenant, cache_ttl_seconds=5),
    "limit.set": lambda acme: limits.set_limit(
        OPERATOR, PolicyTarget(tenant=acme.tenant), LimitValues(requests_per_minute=5)
    ),
    "budget.created": lambda acme: budgets.create(
        OPERATOR, PolicyTarget(tenant=acme.tenant), BudgetTerms(limit_pico=5)
    ),
    "tenant.suspended": lambda acme: registry.suspend(OPERATOR, acme.tenant),
    "tenant.archived": lambda acme: registry.archive(OPERATOR, acme.tenant),
    "key.issued": lambda acme: keys.issue(OPERATOR, acme.project, name="second"),
    "key.rotated": lambda acme: keys.rotate(OPERATOR, acme.key, timedelta(days=1)),
    "key.changed": lambda acme: keys.change(OPERATOR, acme.key, scopes=["inference"]),
    "key.revoked": lambda acme: keys.revoke(OPERATOR, acme.key),
}


@pytest.mark.parametrize("action", CHANGES)
def test_a_change_writes_one_entry_and_raises_the_epoch(acme: Customer, action: str) -> None:
    before, entries = policy_epoch.current(), set(AuditEntry.objects.values_list("id", flat=True))
    CHANGES[action](acme)
    written = AuditEntry.objects.exclude(id__in=entries).filter(action=action).get()
    assert (written.actor_kind, written.actor) == ("user", "ada")
    assert written.tenant is not None
    assert policy_epoch.current() == before + 1


@pytest.mark.parametrize("action", CHANGES)
def test_a_change_that_is_rolled_back_leaves_neither_entry_nor_epoch(acme: Customer, action: str) -> None:
    before, entries = policy_epoch.current(), AuditEntry.objects.count()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        CHANGES[action](acme)
        raise ZeroDivisionError
    assert (policy_epoch.current(), AuditEntry.objects.count()) == (before, entries)


def test_a_change_that_changes_nothing_writes_nothing(acme: Customer) -> None:
    before, entries = policy_epoch.current(), AuditEntry.objects.count()
    registry.set_policy(OPERATOR, acme.tenant, cache_mode="deterministic")
    registry.resume(OPERATOR, acme.tenant)
    assert (policy_epoch.current(), AuditEntry.objects.count()) == (before, entries)


def test_an_entry_says_what_was_and_what_is(acme: Customer) -> None:
    registry.set_policy(OPERATOR, acme.tenant, cache_ttl_seconds=5)
    entry = AuditEntry.objects.get(action="policy.changed")
    assert entry.before is not None
    assert entry.after == {**entry.before, "cache_ttl_seconds": 5}
    assert (entry.object_kind, entry.object_id) == ("tenant", str(acme.tenant.id))


def test_an_entry_names_the_request_that_made_the_change(db: None) -> None:
    request_id = uuid4()
    actor = Actor(kind="key", name="hk_public", request_id=request_id)
    audit.record(actor, "thing.done", ("thing", 7))
    entry = AuditEntry.objects.get()
    assert (entry.actor_kind, entry.actor, entry.request_id) == ("key", "hk_public", request_id)
    assert (entry.object_kind, entry.object_id, entry.tenant) == ("thing", "7", None)


def test_operator_tokens_are_written_down_too(db: None) -> None:
    issued = tokens.issue(OPERATOR, User.objects.create_user("ada"), name="cli")
    tokens.revoke(OPERATOR, issued.token)
    actions = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert list(actions) == ["token.issued", "token.revoked"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tenants_auditentry SET actor = 'nobody'",
        "DELETE FROM tenants_auditentry",
    ],
)
@pytest.mark.parametrize("role", ["hearth_owner", "hearth_app"])
def test_the_database_refuses_to_change_an_entry(acme: Customer, role: str, change: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {role}")
        with pytest.raises(DatabaseError, match=r"tenants_auditentry only grows: (UPDATE|DELETE) is refused"):
            cursor.execute(change)


def test_a_tenant_with_history_cannot_be_deleted(acme: Customer) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenants_tenant")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert Tenant.objects.filter(id=acme.tenant.id).exists()
    assert Project.objects.filter(id=acme.project.id).exists()

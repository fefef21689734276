"""Limits: set, replaced and removed; each change is audited and reaches every gateway."""

from __future__ import annotations

import pytest

from tenants import policy_epoch
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.keys import keys
from tenants.models import AuditEntry, Limit, Tenant
from tenants.policy import limits
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget, target
from tenants.snapshot import snapshot
from tests.tenants.customers import OPERATOR, Customer


def caller(customer: Customer) -> snapshot.Caller:
    """Return the customer's key as a gateway reads it now."""
    return snapshot.load().authenticate(customer.secret)


def test_a_limit_is_seen_by_the_caller_it_is_for_and_by_no_other(acme: Customer, globex: Customer) -> None:
    limits.set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant), LimitValues(requests_per_minute=60))
    limits.set_limit(
        OPERATOR, PolicyTarget(tenant=acme.tenant, project=acme.project), LimitValues(tokens_per_minute=1000)
    )
    limits.set_limit(
        OPERATOR, PolicyTarget(tenant=acme.tenant, key=acme.key, model_name="demo"), LimitValues(concurrent_requests=2)
    )
    assert [
        (line.scope, line.model_name, line.requests_per_minute, line.tokens_per_minute, line.concurrent_requests)
        for line in caller(acme).limits
    ] == [
        ("tenant", "", 60, None, None),
        ("project", "", None, 1000, None),
        ("key", "demo", None, None, 2),
    ]
    assert caller(globex).limits == ()


def test_setting_a_limit_again_replaces_it_and_says_what_it_was(acme: Customer) -> None:
    whole = PolicyTarget(tenant=acme.tenant)
    first = limits.set_limit(OPERATOR, whole, LimitValues(requests_per_minute=60))
    before = policy_epoch.current()
    second = limits.set_limit(OPERATOR, whole, LimitValues(tokens_per_minute=500))
    assert second.id == first.id
    assert limits.values_of(Limit.objects.get()) == LimitValues(tokens_per_minute=500)
    assert policy_epoch.current() == before + 1
    entry = AuditEntry.objects.filter(action="limit.set").latest("id")
    assert (entry.actor, entry.tenant_id, entry.object_id) == (OPERATOR.name, acme.tenant.id, str(first.id))
    who = {"project": None, "key": None, "model": None}
    assert entry.before == {**who, "requests_per_minute": 60, "tokens_per_minute": None, "concurrent_requests": None}
    assert entry.after == {**who, "requests_per_minute": None, "tokens_per_minute": 500, "concurrent_requests": None}


def test_setting_the_same_limit_again_changes_nothing(acme: Customer) -> None:
    whole = PolicyTarget(tenant=acme.tenant)
    limits.set_limit(OPERATOR, whole, LimitValues(requests_per_minute=60))
    before = policy_epoch.current(), AuditEntry.objects.count()
    limits.set_limit(OPERATOR, whole, LimitValues(requests_per_minute=60))
    assert (policy_epoch.current(), AuditEntry.objects.count()) == before


def test_a_lifted_limit_bounds_nobody_and_is_lifted_once(acme: Customer) -> None:
    limit = limits.set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant), LimitValues(requests_per_minute=0))
    limits.remove(OPERATOR, limit)
    assert caller(acme).limits == ()
    before = AuditEntry.objects.count()
    limits.remove(OPERATOR, limit)
    assert AuditEntry.objects.count() == before
    assert AuditEntry.objects.latest("id").action == "limit.removed"


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        (LimitValues(), "limit"),
        (LimitValues(requests_per_minute=-1), "requests_per_minute"),
        (LimitValues(requests_per_minute=2**31), "requests_per_minute"),
        (LimitValues(tokens_per_minute=10**12 + 1), "tokens_per_minute"),
        (LimitValues(concurrent_requests=2**31), "concurrent_requests"),
    ],
)
def test_a_figure_out_of_range_is_refused_by_name(acme: Customer, figures: LimitValues, kind: str) -> None:
    with pytest.raises(BadName) as refused:
        limits.set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant), figures)
    assert refused.value.kind == kind
    assert not Limit.objects.exists()


def test_a_strangers_project_and_key_do_not_exist(acme: Customer, globex: Customer) -> None:
    with pytest.raises(NotFound):
        target(acme.tenant, key=globex.key.id)
    with pytest.raises(NotFound):
        target(acme.tenant, project="no-such")
    assert target(acme.tenant, project="default").project == acme.project != globex.project


def test_nothing_is_set_for_what_is_closed_or_named_twice(acme: Customer) -> None:
    keys.revoke(OPERATOR, acme.key)
    with pytest.raises(NotAllowed):
        target(acme.tenant, key=acme.key.id)
    with pytest.raises(NotAllowed):
        target(acme.tenant, project="default", key=acme.key.id)
    acme.tenant.state = Tenant.State.ARCHIVED
    with pytest.raises(NotAllowed):
        target(acme.tenant)


def test_the_audit_names_whom_the_limit_is_for(acme: Customer) -> None:
    actor = Actor(kind="key", name=acme.key.public_id)
    limits.set_limit(
        actor, PolicyTarget(tenant=acme.tenant, key=acme.key, model_name="demo"), LimitValues(requests_per_minute=1)
    )
    entry = AuditEntry.objects.latest("id")
    assert entry.actor_kind == "key"
    assert entry.after is not None
    assert (entry.after["key"], entry.after["model"]) == (acme.key.public_id, "demo")

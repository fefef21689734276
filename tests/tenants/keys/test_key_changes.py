"""Keys are rotated with their rights, changed, and stored with their last use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tenants import networks, policy_epoch, registry
from tenants.errors import BadName, KeyRefused, NotAllowed
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Budget, Limit, Project
from tenants.policy.policy_target import target
from tenants.snapshot import snapshot
from tests.tenants.customers import OPERATOR, Customer

DAY = timedelta(days=1)


def limited(acme: Customer, key: ApiKey) -> tuple[Limit, Budget]:
    """Give a key a limit and a budget."""
    budget = Budget.objects.create(tenant=acme.tenant, key=key, limit_pico=10**12)
    return Limit.objects.create(tenant=acme.tenant, key=key, requests_per_minute=60), budget


def test_a_successor_does_what_the_key_did_and_both_work_until_the_overlap_ends(acme: Customer) -> None:
    old = keys.issue(
        OPERATOR,
        acme.project,
        name="ci",
        scopes=["inference"],
        allowed_models=["demo"],
        allowed_networks=["192.0.2.0/24"],
    )
    new = keys.rotate(OPERATOR, old.key, DAY)
    fields = ("project_id", "tenant_id", *keys.FIELDS)
    assert [getattr(new.key, field) for field in fields] == [getattr(old.key, field) for field in fields]
    assert new.key.rotated_from == old.key
    assert new.secret != old.secret
    taken = snapshot.load()
    assert taken.authenticate(old.secret).networks == taken.authenticate(new.secret).networks
    assert taken.authenticate(new.secret).allowed_models == frozenset({"demo"})
    old.key.refresh_from_db()
    assert old.key.expires_at is not None
    assert abs(old.key.expires_at - timezone.now() - DAY) < timedelta(minutes=1)


def test_without_an_overlap_the_old_key_is_dead_at_once(acme: Customer) -> None:
    new = keys.rotate(OPERATOR, acme.key, timedelta(0))
    taken = snapshot.load()
    for check in (keys.authenticate, taken.authenticate):
        with pytest.raises(KeyRefused) as refused:
            check(acme.secret)
        assert refused.value.reason == "expired"
    assert taken.authenticate(new.secret).key_id == new.key.id


def test_limits_and_budgets_go_over_to_the_successor_and_hold_both_together(acme: Customer) -> None:
    limit, budget = limited(acme, acme.key)
    second = keys.rotate(OPERATOR, acme.key, DAY)
    third = keys.rotate(OPERATOR, second.key, DAY)
    taken = snapshot.load()
    for secret in (acme.secret, second.secret, third.secret):
        caller = taken.authenticate(secret)
        assert [(line.id, line.scope) for line in caller.limits] == [(limit.id, "key")]
        assert [(line.id, line.scope) for line in caller.budgets] == [(budget.id, "key")]
    limit.refresh_from_db()
    assert limit.key == third.key


@pytest.mark.parametrize("query", range(11))
def test_a_snapshot_taken_while_a_key_is_rotated_has_its_limits_and_budgets(acme: Customer, query: int) -> None:
    limit, budget = limited(acme, acme.key)
    asked = 0

    def rotate_before(execute: Any, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == query + 1:
            keys.rotate(OPERATOR, acme.key, DAY)
        return execute(*arguments)

    with connection.execute_wrapper(rotate_before):
        caller = snapshot.load().authenticate(acme.secret)
    assert asked > query
    assert ([line.id for line in caller.limits], [line.id for line in caller.budgets]) == ([limit.id], [budget.id])


def test_a_rotated_key_gets_no_limits_of_its_own(acme: Customer) -> None:
    successor = keys.rotate(OPERATOR, acme.key, DAY).key
    with pytest.raises(NotAllowed) as refused:
        target(acme.tenant, key=acme.key.id)
    assert refused.value.state.startswith("rotated")
    assert target(acme.tenant, key=successor.id).key == successor


def test_a_stranger_gets_nothing_of_another_key_s_limits(acme: Customer, globex: Customer) -> None:
    limited(acme, acme.key)
    keys.rotate(OPERATOR, acme.key, DAY)
    caller = snapshot.load().authenticate(globex.secret)
    assert (caller.limits, caller.budgets) == ((), ())


def test_a_key_that_expires_gets_a_successor_with_the_same_time_to_live(acme: Customer) -> None:
    now = timezone.now()
    old = keys.issue(OPERATOR, acme.project, name="short", expires_at=now + DAY).key
    ApiKey.objects.filter(id=old.id).update(created_at=now - DAY)
    new = keys.rotate(OPERATOR, old, 30 * DAY).key
    old.refresh_from_db()
    assert old.expires_at == now + DAY  # an overlap does not extend a key's life
    assert new.expires_at is not None
    assert abs(new.expires_at - now - 2 * DAY) < timedelta(minutes=1)


def test_a_key_that_expires_at_the_end_of_time_is_rotated(acme: Customer) -> None:
    old = keys.issue(OPERATOR, acme.project, name="long", expires_at=datetime(9999, 12, 31, tzinfo=UTC)).key
    new = keys.rotate(OPERATOR, old, DAY).key
    assert new.expires_at is not None
    assert abs(new.expires_at - timezone.now() - keys.LONGEST_LIFE) < timedelta(minutes=1)


@pytest.mark.parametrize("state", ["revoked", "expired", "rotated already"])
def test_a_key_that_is_over_is_not_rotated(acme: Customer, state: str) -> None:
    if state == "revoked":
        keys.revoke(OPERATOR, acme.key)
    elif state == "expired":
        keys.change(OPERATOR, acme.key, expires_at=timezone.now())
    else:
        keys.rotate(OPERATOR, acme.key, DAY)
    count = ApiKey.objects.count()
    with pytest.raises(NotAllowed) as refused:
        keys.rotate(OPERATOR, acme.key, DAY)
    assert (refused.value.kind, refused.value.state, ApiKey.objects.count()) == ("key", state, count)


def test_a_key_of_an_archived_project_is_not_rotated(acme: Customer) -> None:
    Project.objects.filter(id=acme.project.id).update(archived_at=timezone.now())
    with pytest.raises(NotAllowed) as refused:
        keys.rotate(OPERATOR, acme.key, DAY)
    assert refused.value.kind == "project"


@pytest.mark.parametrize("overlap", [-DAY, 31 * DAY])
def test_an_overlap_is_at_most_30_days(acme: Customer, overlap: timedelta) -> None:
    with pytest.raises(BadName) as refused:
        keys.rotate(OPERATOR, acme.key, overlap)
    assert refused.value.allowed == "0 to 2592000"


def test_a_rotation_names_both_keys_in_the_log_and_no_secret(acme: Customer) -> None:
    new = keys.rotate(OPERATOR, acme.key, DAY)
    rotated = AuditEntry.objects.get(action="key.rotated")
    issued = AuditEntry.objects.filter(action="key.issued").latest("id")
    assert rotated.before is not None
    assert rotated.after is not None
    assert issued.after is not None
    assert (rotated.before["expires_at"], rotated.after["rotated_to"]) == (None, new.key.public_id)
    assert (issued.object_id, issued.after["rotated_from"]) == (str(new.key.id), acme.key.public_id)
    assert new.secret[-49:] not in str(list(AuditEntry.objects.values()))


def test_a_change_is_in_force_in_the_next_snapshot(acme: Customer) -> None:
    keys.change(
        OPERATOR, acme.key, scopes=["inference"], allowed_models=["demo"], allowed_networks=["192.0.2.1"], name="other"
    )
    caller = snapshot.load().authenticate(acme.secret)
    assert (caller.scopes, caller.allowed_models) == (frozenset({"inference"}), frozenset({"demo"}))
    assert caller.networks == networks.parse(["192.0.2.1/32"])
    entry = AuditEntry.objects.get(action="key.changed")
    assert entry.before is not None
    assert entry.after == {
        **entry.before,
        "name": "other",
        "scopes": ["inference"],
        "allowed_models": ["demo"],
        "allowed_networks": ["192.0.2.1/32"],
    }


def test_a_change_that_changes_nothing_leaves_no_trace(acme: Customer) -> None:
    before, entries = policy_epoch.current(), AuditEntry.objects.count()
    keys.change(OPERATOR, acme.key, name=acme.key.name, allowed_networks=[])
    keys.change(OPERATOR, acme.key)
    assert (policy_epoch.current(), AuditEntry.objects.count()) == (before, entries)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"scopes": ["inference", "admin"]}, "scope"),
        ({"allowed_networks": ["10.0.0.1/8"]}, "allowed_networks"),
        ({"secret_hmac": b""}, "key field"),
    ],
)
def test_a_change_to_what_cannot_be_changes_nothing(acme: Customer, changes: dict[str, Any], kind: str) -> None:
    with pytest.raises(BadName) as refused:
        keys.change(OPERATOR, acme.key, name="half", **changes)
    acme.key.refresh_from_db()
    assert (refused.value.kind, acme.key.name) == (kind, "first")


def test_a_revoked_key_is_not_changed(acme: Customer) -> None:
    keys.revoke(OPERATOR, acme.key)
    with pytest.raises(NotAllowed):
        keys.change(OPERATOR, acme.key, name="late")


def test_networks_that_nobody_can_read_open_nothing_and_keep_nobody_else_out(acme: Customer, globex: Customer) -> None:
    ApiKey.objects.filter(id=acme.key.id).update(allowed_networks=["anywhere"])
    taken = snapshot.load()
    with pytest.raises(KeyRefused):
        taken.authenticate(acme.secret)
    assert taken.authenticate(globex.secret).key_id == globex.key.id


def test_a_use_is_written_down_once_a_minute_and_no_gateway_hears_of_it(acme: Customer, globex: Customer) -> None:
    before, now = policy_epoch.current(), timezone.now()
    moments = [now, now + timedelta(seconds=50), now + timedelta(seconds=70), now - DAY]
    seen = []
    for moment in moments:
        keys.note_used({acme.key.id: moment})
        acme.key.refresh_from_db()
        seen.append(acme.key.last_used_at)
    assert seen == [now, now, moments[2], moments[2]]
    globex.key.refresh_from_db()
    assert (globex.key.last_used_at, policy_epoch.current()) == (None, before)


def test_keys_of_one_batch_are_noted_each_by_its_own_use(acme: Customer, globex: Customer) -> None:
    now = timezone.now()
    keys.note_used({acme.key.id: now - DAY})
    keys.note_used({acme.key.id: now - DAY, globex.key.id: now})
    keys.note_used({})
    acme.key.refresh_from_db()
    globex.key.refresh_from_db()
    assert (acme.key.last_used_at, globex.key.last_used_at) == (now - DAY, now)


def test_a_suspended_tenant_s_key_can_be_rotated_and_stays_refused(acme: Customer) -> None:
    registry.suspend(OPERATOR, acme.tenant)
    new = keys.rotate(OPERATOR, acme.key, DAY)
    with pytest.raises(KeyRefused) as refused:
        snapshot.load().authenticate(new.secret)
    assert refused.value.reason == "tenant_suspended"

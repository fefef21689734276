"""Keys of the playground: one for each member and project, for a quarter of an hour, that only calls models."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from tenants import caps, error_text, members, registry
from tenants.audit import SYSTEM, Actor
from tenants.errors import KeyRefused, NotAllowed
from tenants.keys import keys, playground
from tenants.models import ApiKey, AuditEntry, Membership, Project, User
from tests.tenants.customers import Customer

ROLES = frozenset({"owner", "developer"})


@pytest.fixture
def dana(acme: Customer) -> User:
    """A developer of acme."""
    return members.put(SYSTEM, acme.tenant, "dana", "developer").user


def given(customer: Customer, user: User) -> keys.IssuedKey:
    actor = Actor(kind="user", name=user.username, user=user)
    return playground.issue(actor, customer.project, user, roles=ROLES)


def refusal(secret: str) -> str:
    with pytest.raises(KeyRefused) as refused:
        keys.authenticate(secret)
    return refused.value.reason


def test_it_calls_models_in_its_project_for_fifteen_minutes_and_does_nothing_else(acme: Customer, dana: User) -> None:
    key = keys.authenticate(given(acme, dana).secret)
    assert (key.project, key.purpose, key.name) == (acme.project, "playground", "Playground of dana")
    assert not any(scope.startswith("management") for scope in key.scopes)
    assert key.expires_at is not None
    assert timedelta(minutes=14) < key.expires_at - timezone.now() <= timedelta(minutes=15)
    issued = AuditEntry.objects.get(action="key.issued", object_id=str(key.id))
    assert (issued.actor, issued.after and issued.after["purpose"]) == ("dana", "playground")


def test_the_next_one_is_the_same_key_with_another_secret(acme: Customer, dana: User) -> None:
    first, second = given(acme, dana), given(acme, dana)
    assert (first.key.id, first.key.public_id) == (second.key.id, second.key.public_id)
    assert refusal(first.secret) == "unknown"
    assert keys.authenticate(second.secret).id == first.key.id
    members.put(SYSTEM, acme.tenant, "dana", "owner")
    assert refusal(second.secret) == "revoked"
    assert keys.authenticate(given(acme, dana).secret).id == first.key.id


@pytest.mark.parametrize("is_own", [False, True])
def test_none_follows_for_a_while_if_somebody_else_revokes_it(acme: Customer, dana: User, is_own: bool) -> None:
    issued = given(acme, dana)
    keys.revoke(Actor(kind="user", name="dana", user=dana) if is_own else SYSTEM, issued.key)
    assert refusal(issued.secret) == "revoked"
    if not is_own:
        with pytest.raises(NotAllowed) as refused:
            given(acme, dana)
        assert "revoked by somebody else" in error_text.words(refused.value)
        ended = F("revoked_at") - playground.LIFETIME
        ApiKey.objects.filter(id=issued.key.id).update(revoked_at=ended)
    assert keys.authenticate(given(acme, dana).secret).id == issued.key.id


def test_an_expired_one_is_refused(acme: Customer, dana: User) -> None:
    issued = given(acme, dana)
    ApiKey.objects.filter(id=issued.key.id).update(expires_at=timezone.now())
    assert refusal(issued.secret) == "expired"


@pytest.mark.parametrize("role", ["billing", "viewer", None])
def test_a_person_without_the_right_gets_none(acme: Customer, dana: User, role: str | None) -> None:
    if role is None:
        members.remove(SYSTEM, acme.tenant, "dana")
    else:
        members.put(SYSTEM, acme.tenant, "dana", role)
    with pytest.raises(NotAllowed):
        given(acme, dana)
    assert not ApiKey.objects.filter(purpose="playground").exists()


def test_a_member_of_another_tenant_gets_none_here(acme: Customer, globex: Customer, dana: User) -> None:
    with pytest.raises(NotAllowed):
        given(globex, dana)


@pytest.mark.parametrize("change", ["removed", "demoted"])
def test_it_dies_with_the_membership_and_with_a_change_of_role(acme: Customer, dana: User, change: str) -> None:
    issued = given(acme, dana)
    if change == "removed":
        members.remove(SYSTEM, acme.tenant, "dana")
    else:
        members.put(SYSTEM, acme.tenant, "dana", "viewer")
    assert refusal(issued.secret) == "revoked"
    assert AuditEntry.objects.filter(action="key.revoked", object_id=str(issued.key.id)).exists()


def test_all_of_a_persons_are_revoked_together_and_nobody_elses(acme: Customer, globex: Customer, dana: User) -> None:
    members.put(SYSTEM, globex.tenant, "dana", "owner")
    eve = members.put(SYSTEM, acme.tenant, "eve", "owner").user
    secrets = [given(acme, dana).secret, given(globex, dana).secret]
    others = given(acme, eve).secret
    assert playground.revoke_of(SYSTEM, dana) == 2
    assert [refusal(secret) for secret in secrets] == ["revoked", "revoked"]
    assert keys.authenticate(others)
    assert playground.revoke_of(SYSTEM, dana) == 0


def test_it_is_neither_changed_nor_rotated_nor_counted_among_the_tenants_keys(
    acme: Customer, dana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = given(acme, dana)
    with pytest.raises(NotAllowed):
        keys.change(SYSTEM, issued.key, scopes=list(keys.SCOPES))
    with pytest.raises(NotAllowed):
        keys.rotate(SYSTEM, issued.key, timedelta(0))
    monkeypatch.setattr(caps, "LIVE_KEYS", ApiKey.objects.filter(tenant=acme.tenant, purpose="api").count() + 1)
    assert keys.issue(SYSTEM, acme.project, name="one more")


def test_an_archived_project_gets_none(acme: Customer, dana: User) -> None:
    project = registry.create_project(SYSTEM, acme.tenant, slug="old", name="Old")
    registry.set_project_archived(SYSTEM, project, True)
    with pytest.raises(NotAllowed):
        playground.issue(SYSTEM, Project.objects.get(id=project.id), dana, roles=ROLES)
    assert Membership.objects.filter(user=dana).count() == 1

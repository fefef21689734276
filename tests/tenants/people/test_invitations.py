"""Invitations: made, accepted once by a new or present person, and refused when used, revoked, old or forged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants import members, registry
from tenants.audit import SYSTEM, Actor
from tenants.errors import AlreadyExists, BadName, InvitationRefused, NotAllowed, NotFound
from tenants.models import AuditEntry, Invitation, Membership, User
from tenants.people import invitations, operators
from tenants.people.invitations import NewPerson
from tests.tenants.customers import OPERATOR, Customer

NEW = NewPerson(username="mary", password="correct horse battery")


def reason(secret: str, who: User | NewPerson = NEW) -> str:
    """Return why an invitation is refused."""
    with pytest.raises(InvitationRefused) as refused:
        invitations.accept(secret, who)
    return refused.value.reason


def test_a_new_person_gets_an_account_and_a_membership_once(acme: Customer, globex: Customer) -> None:
    made = invitations.invite(OPERATOR, acme.tenant, "developer", email="mary@example.com")
    assert made.secret.startswith("hi_")
    user = invitations.accept(made.secret, NEW)
    assert user.check_password(NEW.password)
    assert user.email == "mary@example.com"
    assert [(each.tenant, each.role) for each in Membership.objects.filter(user=user)] == [(acme.tenant, "developer")]
    assert reason(made.secret, NewPerson(username="eve", password=NEW.password)) == "accepted"
    assert not User.objects.filter(username="eve").exists()
    entries = AuditEntry.objects.filter(tenant=acme.tenant, action__startswith="invitation.").order_by("id")
    assert [(entry.action, entry.actor) for entry in entries] == [
        ("invitation.created", "ada"),
        ("invitation.accepted", "mary"),
    ]
    assert "example.com" not in str([(entry.before, entry.after) for entry in AuditEntry.objects.all()])


def test_a_present_person_joins_and_a_member_does_not_twice(acme: Customer, globex: Customer) -> None:
    mary = members.put(OPERATOR, globex.tenant, "mary", "owner").user
    made = invitations.invite(OPERATOR, acme.tenant, "viewer")
    assert invitations.accept(made.secret, mary) == mary
    assert members.one(globex.tenant, "mary").role == "owner"
    again = invitations.invite(OPERATOR, acme.tenant, "owner")
    assert reason(again.secret, mary) == "member"
    assert members.one(acme.tenant, "mary").role == "viewer"
    assert invitations.state_of(again.invitation) == "open"


def test_a_revoked_an_old_and_a_forged_link_are_refused(acme: Customer, globex: Customer) -> None:
    revoked, old, good = (invitations.invite(OPERATOR, acme.tenant, "viewer") for _ in range(3))
    with pytest.raises(NotFound):
        invitations.revoke(OPERATOR, globex.tenant, revoked.invitation.id)
    invitations.revoke(OPERATOR, acme.tenant, revoked.invitation.id)
    Invitation.objects.filter(id=old.invitation.id).update(expires_at=timezone.now())
    assert reason(revoked.secret) == "revoked"
    assert reason(old.secret) == "expired"
    assert reason("hi_nonsense") == "unknown"
    assert reason(acme.secret) == "unknown"
    other = good.secret.split("_")[1]
    assert reason(revoked.secret.replace(revoked.invitation.public_id, other)) == "unknown"
    registry.archive(OPERATOR, acme.tenant)
    assert reason(good.secret) == "archived"
    assert User.objects.count() == 0


def test_ended_invitations_count_for_a_day(acme: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MOST_A_DAY", 1)
    made = invitations.invite(OPERATOR, acme.tenant, "viewer").invitation
    invitations.revoke(OPERATOR, acme.tenant, made.id)
    with pytest.raises(NotAllowed, match="1 invitations a day"):
        invitations.invite(OPERATOR, acme.tenant, "viewer")
    Invitation.objects.filter(id=made.id).update(created_at=timezone.now() - timedelta(days=1))
    assert invitations.invite(OPERATOR, acme.tenant, "viewer")


def test_a_taken_name_and_a_weak_password_leave_the_invitation_open(acme: Customer) -> None:
    User.objects.create(username="mary")
    made = invitations.invite(OPERATOR, acme.tenant, "viewer")
    for name in ("mary", "Mary"):
        with pytest.raises(AlreadyExists):
            invitations.accept(made.secret, NewPerson(username=name, password=NEW.password))
    with pytest.raises(BadName):
        invitations.accept(made.secret, NewPerson(username="eve", password="password"))
    with pytest.raises(BadName):
        invitations.accept(made.secret, NewPerson(username="no name", password=NEW.password))
    assert invitations.find(made.secret) == made.invitation
    assert User.objects.count() == 1


def test_who_may_not_invite_any_more_loses_what_they_invited(acme: Customer) -> None:
    members.put(OPERATOR, acme.tenant, "mary", "owner")
    eve = members.put(OPERATOR, acme.tenant, "eve", "admin").user
    made = invitations.invite(Actor(kind="user", name="eve", user=eve), acme.tenant, "admin")
    kept = invitations.invite(OPERATOR, acme.tenant, "viewer")
    members.put(OPERATOR, acme.tenant, "eve", "developer")
    assert reason(made.secret) == "revoked"
    assert invitations.find(kept.secret) == kept.invitation


def test_an_owner_who_becomes_an_admin_loses_the_invitations_of_owners(acme: Customer) -> None:
    members.put(OPERATOR, acme.tenant, "mary", "owner")
    eve = members.put(OPERATOR, acme.tenant, "eve", "owner").user
    actor = Actor(kind="user", name="eve", user=eve)
    lost, kept = (invitations.invite(actor, acme.tenant, role) for role in ("owner", "viewer"))
    members.put(OPERATOR, acme.tenant, "eve", "admin")
    assert reason(lost.secret) == "revoked"
    assert invitations.find(kept.secret) == kept.invitation


@pytest.mark.parametrize(
    ("own", "kept"), [("owner", {"owner", "viewer"}), ("admin", {"viewer"}), ("developer", set()), (None, set())]
)
def test_a_former_platform_admin_keeps_what_their_role_in_the_tenant_lets_them_invite(
    acme: Customer, globex: Customer, own: str | None, kept: set[str]
) -> None:
    operators.put(SYSTEM, "mary", "admin")
    ada = operators.put(SYSTEM, "ada", "admin")
    if own is not None:
        members.put(SYSTEM, acme.tenant, "ada", own)
    actor = Actor(kind="user", name="ada", user=ada)
    for tenant in (acme.tenant, globex.tenant, None):
        for role in ("owner", "viewer") if tenant else ("viewer",):
            invitations.invite(actor, tenant, role)
    operators.remove(SYSTEM, "ada")
    left = Invitation.objects.filter(revoked_at=None)
    assert {each.role for each in left} == kept
    assert {each.tenant for each in left} <= {acme.tenant}


def test_an_invitation_is_locked_after_what_it_is_to(acme: Customer) -> None:
    operators.put(SYSTEM, "ada", "admin")
    for tenant, giver in ((acme.tenant, "tenants_tenant"), (None, "tenants_user")):
        made = invitations.invite(OPERATOR, tenant, "viewer")
        with CaptureQueriesContext(connection) as asked:
            invitations.accept(made.secret, NewPerson(username=f"of-{giver}", password=NEW.password))
        locked = [each["sql"].split(" FOR UPDATE")[0] for each in asked if " FOR UPDATE" in each["sql"]]
        assert f'FROM "{giver}"' in locked[0]
        assert 'FROM "tenants_invitation"' in locked[1]


def test_an_operator_is_invited_too(db: None) -> None:
    operators.put(SYSTEM, "ada", "admin")
    made = invitations.invite(OPERATOR, None, "finance")
    mary = User.objects.get(id=invitations.accept(made.secret, NEW).id)
    assert (mary.is_staff, mary.operator_role) == (True, "finance")
    left = invitations.invite(Actor(kind="user", name="ada"), None, "admin")
    operators.put(SYSTEM, "mary", "admin")
    operators.remove(SYSTEM, "ada")
    assert reason(left.secret, NewPerson(username="eve", password=NEW.password)) == "revoked"


def test_only_so_many_are_open_and_wrong_values_are_refused(acme: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "MOST_OPEN", 2)
    ended = invitations.invite(OPERATOR, acme.tenant, "viewer")
    invitations.revoke(OPERATOR, acme.tenant, ended.invitation.id)
    long_ago = timezone.now() - invitations.KEPT - timedelta(days=1)
    Invitation.objects.filter(id=ended.invitation.id).update(expires_at=long_ago)
    for _ in range(2):
        invitations.invite(OPERATOR, acme.tenant, "viewer")
    with pytest.raises(NotAllowed):
        invitations.invite(OPERATOR, acme.tenant, "viewer")
    assert not Invitation.objects.filter(id=ended.invitation.id).exists()
    for role, email in (("king", ""), ("viewer", "no address")):
        with pytest.raises(BadName):
            invitations.invite(OPERATOR, acme.tenant, role, email=email)

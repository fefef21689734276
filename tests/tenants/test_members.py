"""Members of a tenant and their roles, changed by a command; each change is audited."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tenants import members, registry
from tenants.errors import NotAllowed
from tenants.models import AuditEntry, Membership, User
from tests.tenants.customers import OPERATOR, Customer


def run(*arguments: str) -> list[str]:
    """Run the command and return the first two words of each output line."""
    out = StringIO()
    call_command("members", *arguments, stdout=out)
    return [" ".join(line.split()[:2]) for line in out.getvalue().splitlines()]


def written() -> list[tuple[str, object, object]]:
    """Return the audit entries about members."""
    found = AuditEntry.objects.filter(action__startswith="member.").order_by("id")
    return [(entry.action, entry.before, entry.after) for entry in found]


def test_a_role_is_given_changed_and_taken_and_each_is_written_down(acme: Customer, globex: Customer) -> None:
    run("set", "acme", "mary", "viewer")
    assert run("set", "acme", "mary", "admin") == ["mary admin"]
    run("set", "acme", "mary", "admin")
    run("set", "acme", "ada", "billing")
    assert run("list", "acme") == ["ada billing", "mary admin"]
    assert run("list", "globex") == []
    run("remove", "acme", "mary")
    assert run("list", "acme") == ["ada billing"]
    viewer, admin = ({"person": "mary", "role": role} for role in ("viewer", "admin"))
    assert written() == [
        ("member.set", None, viewer),
        ("member.set", viewer, admin),
        ("member.set", None, {"person": "ada", "role": "billing"}),
        ("member.removed", admin, None),
    ]
    entry = AuditEntry.objects.filter(action="member.removed").get()
    assert (entry.tenant, entry.object_id) == (acme.tenant, str(User.objects.get(username="mary").id))
    assert entry.actor.endswith(" by hearth manage members")


def test_who_is_known_stays_who_they_are(acme: Customer, globex: Customer) -> None:
    mary = User.objects.create_user("mary", password="a password")
    members.put(OPERATOR, acme.tenant, "mary", "developer")
    members.put(OPERATOR, globex.tenant, "mary", "viewer")
    members.remove(OPERATOR, acme.tenant, "mary")
    mary.refresh_from_db()
    assert mary.has_usable_password()
    assert [(each.tenant, each.role) for each in Membership.objects.filter(user=mary)] == [(globex.tenant, "viewer")]


def test_a_new_person_cannot_sign_in_before_they_have_a_password(acme: Customer) -> None:
    assert not members.put(OPERATOR, acme.tenant, "mary", "owner").user.has_usable_password()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("list", "nowhere"), "There is no tenant 'nowhere'."),
        (("set", "acme", "two words", "owner"), "Invalid person 'two words'; allowed:"),
        (("set", "acme", "m" * 151, "owner"), "allowed: at most 150 characters"),
        (("set", "acme", "mary", "king"), "invalid choice: 'king'"),
        (("set", "closed", "mary", "owner"), "Tenant closed is archived."),
        (("remove", "acme", "ada"), "There is no member 'ada'."),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    acme: Customer, globex: Customer, arguments: tuple[str, ...], told: str
) -> None:
    members.put(OPERATOR, globex.tenant, "ada", "owner")
    registry.archive(OPERATOR, registry.create_tenant(OPERATOR, slug="closed", name="Closed"))
    before = written()
    with pytest.raises(CommandError, match=told):
        run(*arguments)
    assert (written(), User.objects.count(), Membership.objects.count()) == (before, 1, 1)


def test_the_last_owner_stays_one(acme: Customer) -> None:
    members.put(OPERATOR, acme.tenant, "mary", "owner")
    members.put(OPERATOR, acme.tenant, "ada", "admin")
    User.objects.create(username="gone", is_active=False)
    members.put(OPERATOR, acme.tenant, "gone", "owner")
    with pytest.raises(NotAllowed):
        members.put(OPERATOR, acme.tenant, "mary", "admin")
    with pytest.raises(CommandError, match="the last owner"):
        run("remove", "acme", "mary")
    members.put(OPERATOR, acme.tenant, "ada", "owner")
    run("remove", "acme", "mary")
    assert run("list", "acme") == ["ada owner", "gone owner"]

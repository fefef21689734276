"""Operators and their roles: given, changed and taken, each written down, and never the last admin's."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tenants.audit import SYSTEM
from tenants.errors import BadName, KeyRefused, NotAllowed, NotFound
from tenants.keys import tokens
from tenants.models import AuditEntry, User
from tenants.people import operators

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> list[str]:
    """Run the command and return the first two words of each output line."""
    out = StringIO()
    call_command("operators", *arguments, stdout=out)
    return [" ".join(line.split()[:2]) for line in out.getvalue().splitlines()]


def test_a_role_is_given_changed_and_taken_and_each_is_written_down() -> None:
    assert run("set", "ada", "admin") == ["ada admin"]
    run("set", "mary", "viewer")
    run("set", "mary", "finance")
    run("set", "mary", "finance")
    assert run("list") == ["ada admin", "mary finance"]
    run("remove", "mary")
    assert run("list") == ["ada admin"]
    ada, viewer, finance = (
        {"person": name, "role": role} for name, role in (("ada", "admin"), ("mary", "viewer"), ("mary", "finance"))
    )
    entries = AuditEntry.objects.filter(action__startswith="operator.").order_by("id")
    assert [(entry.action, entry.before, entry.after) for entry in entries] == [
        ("operator.set", None, ada),
        ("operator.set", None, viewer),
        ("operator.set", viewer, finance),
        ("operator.removed", finance, None),
    ]


def test_operators_of_before_roles_are_admins() -> None:
    assert User.objects.create(username="ada", is_staff=True).operator_role == "admin"


def test_the_last_admin_keeps_the_role() -> None:
    operators.put(SYSTEM, "ada", "admin")
    operators.put(SYSTEM, "mary", "operator")
    User.objects.create(username="gone", is_staff=True, is_active=False)
    with pytest.raises(NotAllowed):
        operators.put(SYSTEM, "ada", "viewer")
    with pytest.raises(NotAllowed):
        operators.remove(SYSTEM, "ada")
    operators.put(SYSTEM, "mary", "admin")
    operators.remove(SYSTEM, "ada")
    assert [each.username for each in operators.every() if each.is_active] == ["mary"]


def test_the_tokens_of_a_removed_operator_are_revoked() -> None:
    operators.put(SYSTEM, "ada", "admin")
    mary = operators.put(SYSTEM, "mary", "operator")
    secret = tokens.issue(SYSTEM, mary, name="api").secret
    assert tokens.authenticate(secret).user == mary
    operators.remove(SYSTEM, "mary")
    with pytest.raises(KeyRefused):
        tokens.authenticate(secret)


def test_what_is_wrong_is_refused_in_words() -> None:
    with pytest.raises(BadName):
        operators.put(SYSTEM, "ada", "king")
    with pytest.raises(BadName):
        operators.put(SYSTEM, "a person", "admin")
    with pytest.raises(NotFound):
        operators.remove(SYSTEM, "nobody")
    operators.put(SYSTEM, "ada", "admin")
    with pytest.raises(CommandError, match="last operator with the role admin"):
        run("remove", "ada")

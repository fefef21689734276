"""Operators and their hosts are named in the audit log to operators only, and nobody else finds them by a filter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from rest_framework.test import APIClient

from tenants import audit
from tenants.audit import SYSTEM, Actor
from tenants.models import AuditEntry, Membership, User
from tests.portal.fixtures import World

SHELL = audit.shell("hearth manage members")


@pytest.fixture
def world(world: World) -> World:
    """The world with one entry of acme by each kind of actor, some of them as a version before wrote them."""
    tenant = world.acme.tenant
    people = (Actor(kind="user", name=user.username, user=user) for user in (world.operator, world.acme.owner))
    for actor in (*people, Actor(kind="key", name=world.acme.key.public_id), SYSTEM, SHELL):
        audit.record(actor, "test.new", ("tenant", tenant.id), tenant=tenant)
        AuditEntry.objects.create(
            actor_kind=actor.kind, actor=actor.name, action="test.old", object_kind="tenant", tenant=tenant
        )
    return world


def api_actors(client: APIClient | Client, query: str = "") -> set[tuple[str, str]]:
    """Return the action and actor of each entry of these tests."""
    found = client.get(f"/api/v1/audit?tenant=acme&limit=500{query}").json()["data"]
    return {(each["action"], each["actor"]) for each in found if each["action"].startswith("test.")}


def both(*actors: str) -> set[tuple[str, str]]:
    return {(action, actor) for action in ("test.new", "test.old") for actor in actors}


def test_only_operators_read_who_an_operator_is(
    world: World, as_operator: APIClient, as_acme: APIClient, signed_in: Callable[[User], Client]
) -> None:
    own = (world.acme.owner.username, world.acme.key.public_id, SYSTEM.name)
    assert api_actors(as_operator) == both(world.operator.username, SHELL.name, *own)
    for reader in (as_acme, signed_in(world.acme.owner)):
        assert api_actors(reader) == both("operator", *own)
    page = signed_in(world.acme.owner).get("/portal/tenants/acme/audit/").content.decode()
    assert ">operator</a>" in page
    assert SHELL.name not in page
    assert f"actor={world.operator.username}" not in page
    assert f">{world.acme.owner.username}</a>" in page
    operators = signed_in(world.operator).get("/portal/tenants/acme/audit/").content.decode()
    assert SHELL.name in operators
    assert f">{world.operator.username}</a>" in operators


@pytest.mark.parametrize("name", ["ada", SHELL.name])
def test_guessing_a_name_finds_nothing(
    world: World, as_operator: APIClient, as_acme: APIClient, signed_in: Callable[[User], Client], name: str
) -> None:
    assert api_actors(as_operator, f"&actor={name}") == both(name)
    assert api_actors(as_acme, f"&actor={name}") == set()
    assert api_actors(as_acme, "&actor=operator") == both("operator")
    assert api_actors(as_acme, f"&actor={world.acme.owner.username}") == both(world.acme.owner.username)
    member = signed_in(world.acme.owner)
    assert 'data-testid="audit-row"' not in member.get(f"/portal/tenants/acme/audit/?actor={name}").content.decode()
    page = member.get("/portal/tenants/acme/audit/?actor=operator").content.decode()
    assert page.count('data-testid="audit-row"') == page.count(">operator</a>") > 0


def test_an_operator_who_left_stays_unnamed_and_a_member_who_left_stays_named(world: World, as_acme: APIClient) -> None:
    gone, owner = world.operator.username, world.acme.owner.username
    world.operator.delete()
    Membership.objects.filter(user=world.acme.owner).delete()
    world.acme.owner.delete()
    seen = api_actors(as_acme)
    assert ("test.new", gone) not in seen
    assert {("test.new", "operator"), ("test.new", owner), ("test.old", owner)} <= seen

"""A limit or budget remembers who set it: nobody below changes it, no key escapes it, no key stops a stronger one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from billing.budgets import spending
from tenants import registry
from tenants.audit import Actor
from tenants.keys import keys
from tenants.models import ApiKey, Budget, Limit, Membership, Project, User
from tenants.policy import bound_setter, budgets, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.snapshot import snapshot
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
ACME = "/api/v1/tenants/acme"
PAGE = "/portal/tenants/acme/limits/"
ONE = LimitValues(requests_per_minute=1)
MANAGE = ("inference", "management:read", "management:write")


def owner_of(world: World) -> Actor:
    """Return acme's owner as an actor."""
    return Actor(kind="user", name=world.acme.owner.username, user=world.acme.owner)


def bound(actor: Actor, target: PolicyTarget) -> tuple[Limit, Budget]:
    """Set a limit and a budget."""
    return limits.set_limit(actor, target, ONE), budgets.create(actor, target, BudgetTerms(limit_pico=0))


def loosened(client: APIClient, limit: Limit, budget: Budget, target: dict[str, str]) -> list[Any]:
    """Try to change and to remove both bounds; return the four responses."""
    return [
        client.put(f"{ACME}/limits", {**target, "requests_per_minute": 1000}, format="json"),
        client.put(f"{ACME}/budgets", {**target, "limit_pico": 10**12}, format="json"),
        client.delete(f"{ACME}/limits/{limit.id}"),
        client.delete(f"{ACME}/budgets/{budget.id}"),
    ]


@pytest.mark.parametrize("role", ["operator", "owner"])
def test_a_key_undoes_no_bound_that_a_person_set_on_it(world: World, as_acme: APIClient, role: str) -> None:
    key = world.acme.key
    set_by = fixtures.OPERATOR if role == "operator" else owner_of(world)
    limit, budget = bound(set_by, PolicyTarget(tenant=world.acme.tenant, key=key))
    assert as_acme.get(f"{ACME}/limits/{limit.id}").json()["set_by"] == role
    assert as_acme.get(f"{ACME}/budgets/{budget.id}").json()["set_by"] == role
    for refused in loosened(as_acme, limit, budget, {"key": str(key.id)}):
        assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")
        assert f"was set by an {role}" in error_of(refused)["message"]
        assert "operators may change or remove it" in error_of(refused)["message"]
    assert (Limit.objects.get().requests_per_minute, Budget.objects.get(archived_at=None).limit_pico) == (1, 0)


def test_an_owner_undoes_no_bound_of_an_operator_and_an_operator_undoes_every(
    world: World, signed_in: SignIn, as_operator: APIClient
) -> None:
    target = PolicyTarget(tenant=world.acme.tenant, project=world.acme.project)
    limit, budget = bound(fixtures.OPERATOR, target)
    browser = signed_in(world.acme.owner)
    page = browser.get(PAGE).content.decode()
    assert page.count('<td class="nowrap">operator</td>') == 2
    assert f"limits/{limit.id}/remove/" not in page
    assert f"budgets/{budget.id}/archive/" not in page
    for path, form in (
        (f"{PAGE}set/", {"for": "project:default", "requests_per_minute": "1000"}),
        (f"{PAGE}{limit.id}/remove/", {}),
        ("/portal/tenants/acme/budgets/set/", {"for": "project:default", "limit": "9"}),
        (f"/portal/tenants/acme/budgets/{budget.id}/archive/", {}),
    ):
        answer = browser.post(path, form, follow=True).content.decode()
        assert "Nothing was changed." in answer
        assert "was set by an operator. Only operators may change or remove it." in answer
    changed = loosened(as_operator, limit, budget, {"project": "default"})
    assert [each.status_code for each in changed] == [200, 200, 204, 204]


def test_an_operator_who_changes_an_owners_bound_makes_it_the_operators(world: World, as_operator: APIClient) -> None:
    target = PolicyTarget(tenant=world.acme.tenant, project=world.acme.project)
    bound(owner_of(world), target)
    same = {"project": "default", "requests_per_minute": 1}
    assert as_operator.put(f"{ACME}/limits", same, format="json").json()["set_by"] == "operator"
    as_operator.put(f"{ACME}/budgets", {"project": "default", "limit_pico": 0}, format="json")
    assert {each.set_by for each in (Limit.objects.get(), Budget.objects.get())} == {"operator"}


def test_keys_change_each_others_bounds_but_not_those_of_the_key_that_created_them(
    world: World, as_acme: APIClient
) -> None:
    other = bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="other", scopes=keys.SCOPES).secret)
    made = as_acme.post(f"{ACME}/keys", {"name": "below", "scopes": list(keys.SCOPES)}, format="json").json()
    below = bearer(made["secret"])
    set_it = {"key": made["id"], "requests_per_minute": 1}
    limit = as_acme.put(f"{ACME}/limits", set_it, format="json").json()
    assert limit["set_by"] == "key"
    refused = below.delete(f"{ACME}/limits/{limit['id']}")
    assert (refused.status_code, world.acme.key.public_id in error_of(refused)["message"]) == (403, True)
    keys.rotate(fixtures.OPERATOR, world.acme.key, timedelta(days=1))
    assert below.put(f"{ACME}/limits", {**set_it, "requests_per_minute": 9}, format="json").status_code == 403
    assert other.delete(f"{ACME}/limits/{limit['id']}").status_code == 204


def test_keys_that_a_bound_key_creates_share_its_bounds(world: World, as_acme: APIClient) -> None:
    limit, budget = bound(fixtures.OPERATOR, PolicyTarget(tenant=world.acme.tenant, key=world.acme.key))
    first = as_acme.post(f"{ACME}/keys", {"name": "first", "scopes": list(keys.SCOPES)}, format="json").json()
    second = bearer(first["secret"]).post(f"{ACME}/keys", {"name": "second"}, format="json").json()
    assert (first["issuers"], second["issuers"]) == (
        [str(world.acme.key.id)], [first["id"], str(world.acme.key.id)],
    )  # fmt: skip

    def shared() -> None:
        found = snapshot.load()
        for each in (first, second):
            caller = found.authenticate(each["secret"])
            assert [line.id for line in caller.limits] == [limit.id]
            assert [line.id for line in caller.budgets] == [budget.id]
        [active] = spending.active_budgets()
        assert {str(each) for each in active.key_ids} >= {str(world.acme.key.id), first["id"], second["id"]}

    shared()
    successor = keys.rotate(fixtures.OPERATOR, world.acme.key, timedelta(days=1))
    shared()
    keys.rotate(fixtures.OPERATOR, ApiKey.objects.get(id=first["id"]), timedelta(days=1))
    shared()
    third = bearer(successor.secret).post(f"{ACME}/keys", {"name": "third"}, format="json").json()
    assert third["issuers"] == [str(successor.key.id)]


def test_a_persons_key_has_its_own_bounds_only(world: World) -> None:
    bound(fixtures.OPERATOR, PolicyTarget(tenant=world.acme.tenant, key=world.acme.key))
    other = keys.issue(owner_of(world), world.acme.project, name="other")
    caller = snapshot.load().authenticate(other.secret)
    assert (other.key.issuers, caller.limits, caller.budgets) == ([], (), ())


@pytest.mark.parametrize("on", ["key", "project"])
def test_a_bound_key_creates_no_project_and_takes_over_no_key_that_is_bound_less(
    world: World, as_acme: APIClient, on: str
) -> None:
    tenant = world.acme.tenant
    free = keys.issue(fixtures.OPERATOR, world.acme.project, name="free", scopes=MANAGE).key
    hr = registry.create_project(fixtures.OPERATOR, tenant, slug="hr", name="HR")
    elsewhere = keys.issue(fixtures.OPERATOR, hr, name="elsewhere", scopes=MANAGE).key
    target = PolicyTarget(tenant=tenant, key=world.acme.key)
    bound(owner_of(world), target if on == "key" else PolicyTarget(tenant=tenant, project=world.acme.project))
    refused = as_acme.post(f"{ACME}/projects", {"slug": "new", "name": "New"}, format="json")
    assert (refused.status_code, "set by an owner" in error_of(refused)["message"]) == (403, True)
    assert not Project.objects.filter(slug="new").exists()
    taken = as_acme.post(f"{ACME}/keys/{elsewhere.id}/rotate", {}, format="json")
    assert (taken.status_code, "set by an owner" in error_of(taken)["message"]) == (403, True)
    made = as_acme.post(f"{ACME}/keys", {"name": "x", "project": "hr"}, format="json")
    # its own bounds follow a key into another project, its project's do not
    assert made.status_code == (201 if on == "key" else 403)
    assert as_acme.post(f"{ACME}/keys/{free.id}/rotate", {}, format="json").status_code == (403 if on == "key" else 201)
    own = as_acme.post(f"{ACME}/keys", {"name": "x", "scopes": list(MANAGE)}, format="json").json()
    assert as_acme.post(f"{ACME}/keys/{own['id']}/rotate", {}, format="json").status_code == 201
    assert as_acme.post(f"{ACME}/keys/{world.acme.key.id}/rotate", {}, format="json").status_code == 201


def test_bounds_that_a_key_set_itself_hold_nobody_back(world: World, as_acme: APIClient) -> None:
    as_acme.put(f"{ACME}/limits", {"key": str(world.acme.key.id), "requests_per_minute": 9}, format="json")
    assert as_acme.post(f"{ACME}/projects", {"slug": "new", "name": "New"}, format="json").status_code == 201


def test_projects_are_made_and_archived_by_owners_operators_and_tenant_wide_keys(
    world: World, signed_in: SignIn
) -> None:
    developer = User.objects.create_user("dev", password=fixtures.PASSWORD)
    Membership.objects.create(user=developer, tenant=world.acme.tenant, role=Membership.Role.DEVELOPER)
    narrow = bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="narrow", scopes=MANAGE).secret)
    for path, body in (("projects", {"slug": "new", "name": "New"}), ("projects/default/archive", {})):
        refused = narrow.post(f"{ACME}/{path}", body, format="json")
        assert (refused.status_code, "owners and admins of the tenant" in error_of(refused)["message"]) == (403, True)
    browser, projects = signed_in(developer), "/portal/tenants/acme/projects/"
    for path, form in ((projects, {"slug": "new", "name": "New"}), (f"{projects}default/archive/", {"archived": "1"})):
        assert (
            "Only operators, owners and admins of the tenant" in browser.post(path, form, follow=True).content.decode()
        )
    assert 'data-testid="project-create"' not in browser.get(projects).content.decode()
    assert Project.objects.filter(tenant=world.acme.tenant, archived_at=None).count() == 1
    assert signed_in(world.acme.owner).post(projects, {"slug": "new"}).status_code == 302
    assert Project.objects.get(slug="new").name == "new"


# ------------------------------------------------------------------------------------------------ stronger keys


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        ({"scopes": ("management:read", "management:write", "management:tenant")}, {"scopes": keys.SCOPES}),
        ({"scopes": keys.SCOPES, "allowed_models": ["small"]}, {"scopes": keys.SCOPES}),
        ({"scopes": keys.SCOPES, "allowed_networks": ["127.0.0.1"]}, {"scopes": keys.SCOPES}),
    ],
)
def test_a_key_stops_no_key_that_may_do_more(world: World, weak: dict[str, Any], strong: dict[str, Any]) -> None:
    hr = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="hr", name="HR")
    target = keys.issue(fixtures.OPERATOR, hr, name="strong", **strong).key
    own = keys.issue(fixtures.OPERATOR, world.acme.project, name="weak", **weak)
    client, path = bearer(own.secret), f"{ACME}/keys/{target.id}"
    for refused in (
        client.delete(path),
        client.post(f"{path}/revoke"),
        client.patch(path, {"expires_at": "2020-01-01T00:00:00Z"}, format="json"),
        client.patch(path, {"name": "x"}, format="json"),
        client.post(f"{ACME}/projects/hr/archive"),
    ):
        assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")
        assert "may do more" in error_of(refused)["message"]
    target.refresh_from_db()
    assert (target.revoked_at, target.expires_at, target.name) == (None, None, "strong")
    lesser = keys.issue(fixtures.OPERATOR, hr, name="lesser", **weak).key
    assert client.delete(f"{ACME}/keys/{lesser.id}").status_code == 200
    assert client.delete(f"{ACME}/keys/{own.key.id}").status_code == 200


def test_who_sets_a_bound_is_known_for_every_actor(world: World) -> None:
    operator = Actor(kind="user", name="ada", user=world.operator)
    found = [bound_setter.setter_of(each).value for each in (fixtures.OPERATOR, operator, owner_of(world))]
    assert found == ["operator", "operator", "owner"]
    assert bound_setter.fields_of(Actor(kind="key", name="abc")) == {"set_by": "key", "set_by_key": "abc"}

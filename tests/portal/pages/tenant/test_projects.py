"""The page *Projects*: names, and what belongs to each project."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from tenants import members, registry
from tenants.models import AuditEntry, Project, User
from tenants.policy import limits
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE, API = "/portal/tenants/acme/projects/", "/api/v1/tenants/acme/projects/default"


def test_a_project_is_renamed_on_the_page_and_through_the_api(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    owner.post(f"{PAGE}default/rename/", {"name": " Search "})
    project = Project.objects.get(id=world.acme.project.id)
    assert (project.slug, project.name) == ("default", "Search")
    assert owner.patch(API, {"name": "Find"}, "application/json").json()["name"] == "Find"
    renamed = AuditEntry.objects.filter(action="project.renamed").order_by("id")
    assert [(entry.before, entry.after) for entry in renamed] == [
        ({"name": "Default"}, {"name": "Search"}),
        ({"name": "Search"}, {"name": "Find"}),
    ]
    assert "is not a valid name" in owner.post(f"{PAGE}default/rename/", {"name": " "}, follow=True).content.decode()
    assert owner.patch(API, {"name": ""}, "application/json").status_code == 400


def test_other_roles_and_strangers_do_not_rename(world: World, signed_in: SignIn) -> None:
    developer = members.put(fixtures.OPERATOR, world.acme.tenant, "developer", "developer").user
    for user in (developer, world.globex.owner):
        signed_in(user).post(f"{PAGE}default/rename/", {"name": "Mine"})
        assert signed_in(user).patch(API, {"name": "Mine"}, "application/json").status_code in {403, 404}
    assert Project.objects.get(id=world.acme.project.id).name == "Default"


def test_the_page_says_what_belongs_to_each_project(world: World, signed_in: SignIn) -> None:
    tenant = world.acme.tenant
    hr = registry.create_project(fixtures.OPERATOR, tenant, slug="hr", name="HR")
    limits.set_limit(fixtures.OPERATOR, PolicyTarget(tenant=tenant, project=hr), LimitValues(requests_per_minute=5))
    members.put(fixtures.OPERATOR, tenant, "mary", "developer")
    members.confine(fixtures.OPERATOR, tenant, "mary", [hr])
    rows = {each.project.slug: each for each in signed_in(world.acme.owner).get(PAGE).context["rows"]}
    assert [(each.keys, each.limits, each.budgets, each.developers) for each in (rows["default"], rows["hr"])] == [
        (1, 0, 0, ()),
        (0, 1, 0, ("mary",)),
    ]

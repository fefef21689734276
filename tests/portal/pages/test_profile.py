"""The page *Profile*: everybody changes their own name, and sees what they may do."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from tenants.models import AuditEntry, User
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/account/profile/"


def test_a_person_changes_their_own_name_and_others_see_it_in_lists(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    owner.post(PAGE, {"first_name": "Mary", "last_name": "Jones"})
    assert User.objects.get(id=world.acme.owner.id).get_full_name() == "Mary Jones"
    assert User.objects.exclude(first_name="").count() == 1
    assert "Mary Jones" in owner.get("/portal/tenants/acme/members/").content.decode()
    assert "Jones" not in str(list(AuditEntry.objects.values_list("before", "after")))
    assert owner.post(PAGE, {"first_name": "m" * 151}).status_code == 400


def test_a_person_sees_their_own_roles_only(world: World, signed_in: SignIn) -> None:
    page = signed_in(world.acme.owner).get(PAGE).content.decode()
    assert "Acme" in page
    assert "Globex" not in page
    assert "an operator with the role admin" in signed_in(world.operator).get(PAGE).content.decode()


def test_a_person_chooses_the_time_zone_of_their_pages(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    assert "data-zone" not in owner.get(PAGE).content.decode()
    owner.post(PAGE, {"time_zone": "Asia/Kathmandu"})
    assert 'data-zone="Asia/Kathmandu"' in owner.get("/portal/tenants/acme/").content.decode()
    assert owner.post(PAGE, {"time_zone": "Mars/Olympus"}).status_code == 400
    assert "data-zone" not in signed_in(world.globex.owner).get(PAGE).content.decode()

"""Which open live pages must close: all are judged at once, in as many queries as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from allauth.mfa.models import Authenticator
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.live import viewers
from portal.live.viewers import Viewer
from tenants import members, registry
from tenants.audit import SYSTEM
from tenants.identity import second_factor
from tenants.ids import TenantId
from tenants.models import Membership, User
from tests.portal.fixtures import World
from tests.portal.test_consumers import cookie_of

pytestmark = pytest.mark.django_db


async def _nothing() -> None:
    return None


def viewer(user: User, tenant_id: TenantId | None) -> Viewer:
    return Viewer(session_key=cookie_of(user), tenant_id=tenant_id, end=_nothing)


@pytest.fixture
def pages(world: World) -> list[Viewer]:
    """The platform's page of an operator, and the page of acme of its owner and of the operator."""
    acme = TenantId(world.acme.tenant.id)
    return [viewer(world.operator, None), viewer(world.acme.owner, acme), viewer(world.operator, acme)]


def test_who_keeps_session_and_rights_keeps_the_page(pages: list[Viewer]) -> None:
    assert viewers.without_right(pages) == []
    assert viewers.without_right([]) == []


def test_a_member_sees_no_other_tenant_s_page_and_not_the_platform_s(world: World) -> None:
    foreign = viewer(world.acme.owner, TenantId(world.globex.tenant.id))
    platform = viewer(world.acme.owner, None)
    assert viewers.without_right([foreign, platform]) == [foreign, platform]


def session_ends(world: World, page: Viewer) -> None:
    from django.contrib.sessions.models import Session

    Session.objects.filter(session_key=page.session_key).delete()


def session_expires(world: World, page: Viewer) -> None:
    from django.contrib.sessions.models import Session

    Session.objects.filter(session_key=page.session_key).update(expire_date=timezone.now() - timedelta(seconds=1))


def password_changes(world: World, page: Viewer) -> None:
    world.acme.owner.set_password("another one")
    world.acme.owner.save()


def person_is_disabled(world: World, page: Viewer) -> None:
    User.objects.filter(pk=world.acme.owner.pk).update(is_active=False)


def member_leaves(world: World, page: Viewer) -> None:
    Membership.objects.filter(user=world.acme.owner).delete()


def tenant_is_archived(world: World, page: Viewer) -> None:
    registry.archive(SYSTEM, world.acme.tenant)


def second_factor_is_required(world: World, page: Viewer) -> None:
    second_factor.require(SYSTEM, world.acme.tenant, True)


@pytest.mark.parametrize(
    "change",
    [
        session_ends, session_expires, password_changes, person_is_disabled, member_leaves, tenant_is_archived,
        second_factor_is_required,
    ],
)  # fmt: skip
def test_a_page_closes_when(world: World, pages: list[Viewer], change: Callable[[World, Viewer], None]) -> None:
    change(world, pages[1])
    assert viewers.without_right(pages) == [pages[1]]


def test_a_page_of_other_projects_than_those_to_which_its_reader_is_confined_closes(world: World) -> None:
    tenant, own = world.acme.tenant, frozenset({world.acme.project.id})
    dana = User.objects.create(username="dana")
    Membership.objects.create(user=dana, tenant=tenant, role=Membership.Role.DEVELOPER)
    whole = viewer(dana, TenantId(tenant.id))
    confined = Viewer(session_key=whole.session_key, tenant_id=whole.tenant_id, projects=own, end=_nothing)
    assert viewers.without_right([whole, confined]) == [confined]
    members.confine(SYSTEM, tenant, "dana", [world.acme.project])
    assert viewers.without_right([whole, confined]) == [whole]


def test_a_second_factor_that_somebody_has_is_enough(world: World, pages: list[Viewer]) -> None:
    second_factor.require(SYSTEM, world.acme.tenant, True)
    Authenticator.objects.create(user=world.acme.owner, type=Authenticator.Type.TOTP, data={"secret": "x"})
    assert viewers.without_right(pages) == []


def test_fifty_pages_take_as_many_queries_as_three(world: World, pages: list[Viewer]) -> None:
    acme = TenantId(world.acme.tenant.id)
    people = [User.objects.create(username=f"person-{number}") for number in range(50)]
    Membership.objects.bulk_create(
        Membership(user=each, tenant=world.acme.tenant, role=Membership.Role.VIEWER) for each in people
    )
    many = [viewer(each, acme) for each in people]
    with CaptureQueriesContext(connection) as few:
        viewers.without_right(pages)
    with CaptureQueriesContext(connection) as all_of_them:
        assert viewers.without_right([*pages, *many]) == []
    assert len(all_of_them) == len(few) == 5


async def test_a_page_without_session_is_closed_and_the_others_stay_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(viewers, "_turn", list)  # none of them has a session
    closed: asyncio.Queue[str] = asyncio.Queue()
    pages = viewers.OpenPages()

    def page(name: str, *, breaks: bool = False) -> Viewer:
        async def end() -> None:
            await closed.put(name)
            if breaks:
                raise RuntimeError("the socket is gone")

        return Viewer(session_key=f"none-{name}", tenant_id=None, end=end)

    pages.join(page("first", breaks=True))
    assert await asyncio.wait_for(closed.get(), 30) == "first"
    pages.join(page("second"))
    assert await asyncio.wait_for(closed.get(), 30) == "second"
    assert closed.empty()

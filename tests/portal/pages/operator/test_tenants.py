"""The operator's list of tenants: search, states and order."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tenants import registry
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import OPERATOR, World

SignIn = Callable[[User], Client]


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    """An operator, with globex having more requests than acme, and archived tenants of an audit."""
    moment = timezone.now() - timedelta(minutes=30)
    fixtures.store([fixtures.answered(world, world.acme, moment, 1)])
    fixtures.store([fixtures.answered(world, world.globex, moment, number) for number in (2, 3)])
    registry.suspend(OPERATOR, world.globex.tenant)
    for name in ("victim", "attacker"):
        made = registry.create_tenant(OPERATOR, slug=f"isolation-audit-1-{name}", name="Isolation audit")
        registry.archive(OPERATOR, made)
    return signed_in(world.operator)


@pytest.mark.parametrize(
    ("query", "slugs"),
    [
        ("", ["acme", "globex", "platform"]),
        ("state=suspended", ["globex"]),
        ("state=archived", ["isolation-audit-1-attacker", "isolation-audit-1-victim"]),
        ("state=all&q=AUDIT-1-v", ["isolation-audit-1-victim"]),
        ("q=Acm", ["acme"]),
        ("q=nobody", []),
        ("sort=requests", ["globex", "acme", "platform"]),
        ("sort=billed", ["globex", "acme", "platform"]),
        ("sort=name", ["acme", "globex", "platform"]),
    ],
)
def test_tenants_are_found_and_sorted_and_archived_ones_stay_out_of_the_way(
    browser: Client, query: str, slugs: list[str]
) -> None:
    page = browser.get(f"/portal/tenants/?{query}").content.decode()
    assert re.findall(r'data-testid="tenant-([a-z0-9-]+)"', page) == [*slugs, "create"]


def test_how_many_are_archived_is_said_with_a_link_to_them(browser: Client) -> None:
    page = browser.get("/portal/tenants/?period=7d").content.decode()
    assert 'href="?period=7d&amp;state=archived"' in page
    assert "2 archived" in page


@pytest.mark.parametrize("query", ["state=gone", "sort=slug", "q=%00"])
def test_a_filter_that_does_not_exist_is_named(browser: Client, query: str) -> None:
    assert browser.get(f"/portal/tenants/?{query}").status_code == 400

"""Tables of many rows: the first ones, and what is left out in one row or behind a link."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.pages import breakdown, savings
from portal.pages.operator import tenants
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignedIn = Callable[[User], Client]


@pytest.fixture
def used(world: World) -> World:
    now = timezone.now() - timedelta(minutes=30)
    fixtures.store([fixtures.answered(world, world.acme, now, 1), fixtures.predicted(world, world.globex, now, 2)])
    return world


def test_the_list_of_tenants_names_the_first_ones_and_all_on_request(
    used: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "MOST_ROWS", 1)
    operator = signed_in(used.operator)
    page = operator.get("/portal/tenants/?sort=requests").content.decode()
    assert page.count('class="linked"') == 1
    assert 'data-testid="left-out"' in page
    assert 'href="?sort=requests&amp;all=1"' in page
    everything = operator.get("/portal/tenants/?sort=requests&all=1").content.decode()
    assert everything.count('class="linked"') > 1
    assert 'data-testid="left-out"' not in everything


def test_savings_of_tenants_beyond_the_first_ones_are_one_row(
    used: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savings, "MOST_ROWS", 1)
    page = signed_in(used.operator).get("/portal/savings/").content.decode()
    assert page.count('data-testid="by-tenant-') == 2
    assert "1 other, which the CSV has" in page


def test_usage_of_tenants_beyond_the_first_ones_is_one_row_without_a_link(
    used: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "MOST_ROWS", 0)
    page = signed_in(used.operator).get("/portal/usage/?by=tenant").content.decode()
    assert page.count('data-testid="usage-by-') == 1
    assert 'class="linked"' not in page
    assert 'data-testid="usage-by-2 others, which the CSV has"' in page

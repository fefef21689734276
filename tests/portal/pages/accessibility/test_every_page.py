"""Every page that docs/api.md names, as an operator and a tenant's owner meet it: axe, phone widths, the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth.hashers import make_password
from django.db import connection
from playwright.sync_api import Page

from tenants.models import PolicyEpoch, User
from tests.portal import fixtures, permission_tables, permissions
from tests.portal.browser import inspect, sign_in
from tests.portal.fixtures import PASSWORD
from tests.portal.permissions import Scene
from tests.portal.portal_process import portal_process

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(1800),
    # playwright's event loop leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
#: Parts of pages, files, and documents without scripts.
NOT_PAGES = ("/fleet/live/", "/first-steps/", ".csv", "/{kind}/", "/invoice-draft/{month}/", "/billing/runs/{run}/")


@pytest.fixture
def scene(transactional_db: None, tmp_path: Path) -> Scene:
    """Everything that a page can be about."""
    PolicyEpoch.objects.get_or_create(id=1)
    built = permissions.build(fixtures.build(), tmp_path / "adapter")
    User.objects.update(password=make_password(PASSWORD))
    return built


@pytest.fixture
def portal(scene: Scene, app_database_url: str, tmp_path: Path) -> Iterator[str]:
    """A portal that serves the scene."""
    try:
        with portal_process(app_database_url, tmp_path / "portal.log") as base:
            yield base
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")


@pytest.fixture
def addresses(scene: Scene) -> dict[str, list[str]]:
    """The address of every page, by the column of the person who opens it."""
    table = permission_tables.documented()
    pages = [each for each in table if each.startswith("GET /portal/") and not each.endswith(NOT_PAGES)]
    operator = [scene._filled(each.split()[1], scene.own) for each in pages if table[each]["operator"] == "yes"]
    owner = [scene._filled(each.split()[1], scene.own) for each in pages if table[each]["owner"] == "yes"]
    return {"ada": [*operator, "/docs/", "/docs/errors/", "/docs/api/"], "acme-owner": owner}


@pytest.mark.parametrize("name", ["ada", "acme-owner"])
def test_axe_finds_nothing_and_a_phone_shows_every_page_whole(
    page: Page, addresses: dict[str, list[str]], name: str
) -> None:
    sign_in(page, name)
    found: dict[str, list[str]] = {}
    for address in addresses[name]:
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 200, address
        found[address] = inspect(page, f"{name}{address.replace('/', '_')}")
    assert [f"{where}: {each}" for where, what in found.items() for each in what] == []

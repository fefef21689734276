"""A portal process and a tab of a headless Chromium, for tests of pages as they are rendered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone
from playwright.sync_api import Browser, Page, sync_playwright

from tenants.models import PolicyEpoch
from tests.portal import fixtures, fleet_fixture
from tests.portal.fixtures import World
from tests.portal.portal_process import portal_process


@pytest.fixture
def portal(transactional_db: None, app_database_url: str, tmp_path: Path) -> Iterator[str]:
    """A portal with a fleet and a few requests: two answers and a hit for acme, one answer for globex."""
    PolicyEpoch.objects.get_or_create(id=1)
    world: World = fixtures.build()
    fleet_fixture.build(world)
    now = timezone.now() - timedelta(minutes=40)
    fixtures.store(
        [
            fixtures.answered(world, world.acme, now, 1),
            fixtures.answered(world, world.acme, now, 2),
            fixtures.predicted(world, world.acme, now, 3),
            fixtures.answered(world, world.globex, now, 4),
        ]
    )
    try:
        with portal_process(app_database_url, tmp_path / "portal.log") as base:
            yield base
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")


@pytest.fixture
def chromium(portal: str) -> Iterator[Browser]:
    """Debian's Chromium."""
    found = shutil.which("chromium")
    assert found, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """Warnings and errors of the console; must stay empty."""
    return []


@pytest.fixture
def page(chromium: Browser, portal: str, complaints: list[str]) -> Page:
    """A new tab at the sign-in page."""
    tab = chromium.new_page(base_url=portal)
    tab.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto("/portal/")
    return tab

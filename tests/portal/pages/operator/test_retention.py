"""The page of retention, and erasing an archived tenant from its page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import pytest
from django.test import Client

from billing.ledger import partitions
from billing.models import UsageExport
from retention.models import Erasure, HeldMonth, RetentionPolicy
from tenants import registry
from tenants.models import Tenant, User
from tests.portal.fixtures import OPERATOR, World

SignIn = Callable[[User], Client]


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    return signed_in(world.operator)


def test_the_page_shows_what_is_due_and_saves_a_version(browser: Client) -> None:
    HeldMonth.objects.create(month="2025-01", reason="3 requests have no price")
    page = browser.get("/portal/retention/").content.decode()
    assert 'data-testid="due-requests"' in page
    assert "2025-01: 3 requests have no price" in page
    saved = {
        "requests_months": "6",
        "events_days": "",
        "decisions_days": "7",
        "deferred_hours": "3",
        "audit_days": "90",
    }
    assert browser.post("/portal/retention/", saved).status_code == 302
    version = RetentionPolicy.objects.get()
    assert (version.requests_months, version.events_days, version.deferred_hours) == (6, None, 3)
    assert "for ever" in browser.get("/portal/retention/").content.decode()


def test_the_page_shows_partitions_by_month_and_the_files_of_deleted_days(browser: Client) -> None:
    day = partitions.of_day(date(2025, 3, 16))
    partitions.ensure(datetime(2031, 11, 30, tzinfo=UTC))
    UsageExport.objects.create(
        partition=day.table,
        begins_at=day.begin,
        ends_at=day.end,
        rows=2_000_000,
        file_bytes=3 << 20,
        sha256="ab" * 32,
        node="n1",
        path="/exports/usage-2025-03-16.csv.gz",
    )
    page = browser.get("/portal/retention/").content.decode()
    assert 'data-testid="partitions-2031-12"' in page and 'data-testid="partitions-default"' in page
    assert "/exports/usage-2025-03-16.csv.gz" in page and "2,000,000" in page and "3 MiB" in page


def test_a_wrong_number_is_shown_next_to_its_field(browser: Client) -> None:
    answer = browser.post("/portal/retention/", {"requests_months": "1", "deferred_hours": "24"})
    assert answer.status_code == 400
    assert "from 2 to 120" in answer.content.decode()
    assert not RetentionPolicy.objects.exists()


def test_an_archived_tenant_is_erased_from_its_page(browser: Client, world: World) -> None:
    policy = "/portal/tenants/acme/policy/"
    assert 'data-testid="erase"' not in browser.get(policy).content.decode()
    registry.archive(OPERATOR, world.acme.tenant)
    assert 'data-testid="erase"' in browser.get(policy).content.decode()
    wrong = browser.post("/portal/tenants/acme/erase/", {"confirm": "globex"})
    assert (wrong.status_code, "Enter acme to erase" in wrong.content.decode()) == (400, True)
    assert not Erasure.objects.exists()
    done = browser.post("/portal/tenants/acme/erase/", {"confirm": "acme"})
    erased = Tenant.objects.get(id=world.acme.tenant.id)
    assert done["Location"] == f"/portal/tenants/{erased.slug}/policy/"
    assert browser.get(done["Location"]).status_code == 200
    assert erased.slug.startswith("erased-")


def test_members_find_neither(world: World, signed_in: SignIn) -> None:
    registry.archive(OPERATOR, world.globex.tenant)
    member = signed_in(world.acme.owner)
    assert member.get("/portal/retention/").status_code == 404
    assert member.post("/portal/retention/", {"audit_days": "90"}).status_code == 404
    for slug in ("acme", "globex"):
        assert member.post(f"/portal/tenants/{slug}/erase/", {"confirm": slug}).status_code == 404
    assert not Erasure.objects.exists() and not RetentionPolicy.objects.exists()

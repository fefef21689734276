"""The savings statement as a tenant's people and keys read it, and as strangers do not."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from billing.months import closing
from billing.reports.statements import Month
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
PAGE = "/portal/tenants/acme/savings-statement"
API = "/api/v1/tenants/{}/savings-statements/2026-03"


@pytest.fixture
def used(world: World) -> World:
    """Acme: an answer and a hit in March."""
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1), fixtures.predicted(world, world.acme, MARCH, 2)])
    return world


def test_page_api_and_csv_show_the_same(used: World, as_acme: APIClient, signed_in: SignIn) -> None:
    document = as_acme.get(API.format("acme")).json()
    assert [(each["cache"], each["tokens"], each["saved_pico"], each["engine_ms"]) for each in document["models"]] == [
        ("prediction", 1100, 210_000_000, 780),
        ("prefix", 400, 54_000_000, None),
    ]
    assert document["saved_pico"] == 264_000_000
    assert document["without_caches_pico"] == document["usage_pico"] + 264_000_000
    assert "one cache only" in document["method"]
    answer: Any = as_acme.get(API.format("acme") + "?format=csv")
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
    assert [row["saved_pico"] for row in rows if not row["model"]] == ["210000000", "54000000"]
    browser = signed_in(used.acme.owner)
    page = browser.get(f"{PAGE}/?month=2026-03").content.decode()
    assert '<span class="value" data-testid="saved">$0.000264</span>' in page
    assert "780 ms" in page and "not measured" in page and 'data-testid="closed"' not in page
    closing.close(fixtures.OPERATOR, Month(tenant=used.acme.tenant, year=2026, month=3))
    assert 'data-testid="closed"' in browser.get(f"{PAGE}/?month=2026-03").content.decode()
    assert "Nothing saved" in browser.get(f"{PAGE}/?month=2026-02").content.decode()
    assert f"{PAGE}/?month=2026-03" in browser.get("/portal/tenants/acme/statement/?month=2026-03").content.decode()


def test_a_stranger_sees_nothing(used: World, as_globex: APIClient, signed_in: SignIn) -> None:
    assert as_globex.get(API.format("acme")).status_code == 404
    assert as_globex.get(API.format("globex")).json()["models"] == []
    stranger = signed_in(used.globex.owner)
    assert stranger.get(f"{PAGE}/?month=2026-03").status_code == 404
    assert stranger.get(f"{PAGE}.csv?month=2026-03").status_code == 404
    wrong = as_globex.get("/api/v1/tenants/globex/savings-statements/2026-3x")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "month")

"""The page of prices: a CSV file is previewed, then set; and the same file through the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import PriceVersion
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
URL = "/portal/prices/"
HEAD = "model,prompt_per_million,cached_prompt_per_million,completion_per_million"
#: Twice the prices of the fixtures.
DOUBLE = f"{HEAD}\n{fixtures.MODEL},0.30,0.03,1.20\n"
JUMP = f"{HEAD}\n{fixtures.MODEL},9,0.03,1.20\n"
ONE = 600 * 150_000 + 400 * 15_000 + 100 * 600_000


@pytest.fixture
def used(world: World) -> World:
    """An answer to Acme last month."""
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, timezone.now().replace(day=1) - timedelta(days=9), 1)])
    return world


def test_a_file_is_previewed_and_then_set(used: World, signed_in: SignIn) -> None:
    browser, before = signed_in(used.operator), PriceVersion.objects.count()
    sent = {"action": "preview", "file": SimpleUploadedFile("prices.csv", DOUBLE.encode())}
    page = browser.post(URL, sent).content.decode()
    assert 'data-testid="preview"' in page and f"{fixtures.MODEL},0.30,0.03,1.20" in page and "$0.000156" in page
    assert PriceVersion.objects.count() == before
    wrong = browser.post(URL, {"action": "import", "csv": f"{HEAD}\nx,1,1,\n"})
    assert (wrong.status_code, "line 2, completion_per_million" in wrong.content.decode()) == (400, True)
    assert "more than tenfold" in browser.post(URL, {"action": "import", "csv": JUMP}).content.decode()
    assert PriceVersion.objects.count() == before
    assert "1 prices set." in browser.post(URL, {"action": "import", "csv": DOUBLE}, follow=True).content.decode()
    assert "in force already" in browser.post(URL, {"action": "import", "csv": DOUBLE}, follow=True).content.decode()
    assert b"".join(browser.get("/portal/prices.csv")).decode().splitlines()[1].startswith(f"{fixtures.MODEL},0.30,")
    member = signed_in(used.acme.owner)
    assert member.post(URL, {"action": "import", "csv": JUMP, "confirm": "on"}).status_code == 404
    assert PriceVersion.objects.count() == before + 1


def test_one_price_is_typed_previewed_and_set(used: World, signed_in: SignIn) -> None:
    browser, before = signed_in(used.operator), PriceVersion.objects.count()
    shown = browser.get(f"{URL}?model={fixtures.MODEL}").content.decode()
    assert 'name="completion_per_million" value="0.60"' in shown and f'name="model" value="{fixtures.MODEL}"' in shown
    typed = {
        "model": fixtures.MODEL,
        "prompt_per_million": "0.30",
        "cached_prompt_per_million": "0.03",
        "completion_per_million": "1.20",
        "high_priority_percent": "150",
    }
    page = browser.post(URL, typed | {"action": "preview"}).content.decode()
    assert 'data-testid="preview"' in page and 'name="completion_per_million" value="1.20"' in page
    wrong = browser.post(URL, typed | {"action": "import", "prompt_per_million": "1,\n2"})
    assert wrong.status_code == 400 and "is no amount" in wrong.content.decode()
    assert PriceVersion.objects.count() == before
    browser.post(URL, typed | {"action": "import"})
    made = PriceVersion.objects.order_by("-id")[0]
    assert (made.prompt_pico, made.high_priority_bp, PriceVersion.objects.count()) == (300_000, 15_000, before + 1)


def send(client: APIClient, text: str, query: str = "") -> Any:
    return client.post(f"/api/v1/prices/import{query}", text, content_type="text/csv")


def test_the_api_previews_and_sets_a_file(used: World, as_operator: APIClient, as_acme: APIClient) -> None:
    before = PriceVersion.objects.count()
    seen = send(as_operator, DOUBLE, "?dry_run=true").json()
    assert [(each["model"], each["tenant"], each["after"]["prompt_pico"]) for each in seen["changes"]] == [
        (fixtures.MODEL, "", 300_000)
    ]
    assert [(each["tenant"], each["was_pico"], each["would_be_pico"]) for each in seen["preview"]] == [
        ("acme", ONE, 2 * ONE),
        ("globex", 0, 0),
    ]
    for text, query, status, code, param in (
        (JUMP, "", 409, "price_jump", None),
        (f"{HEAD}\nx,1,1,\n", "", 400, "invalid_document", "completion_per_million"),
        (DOUBLE, "?dry_run=perhaps", 400, "invalid", "dry_run"),
    ):
        refused = send(as_operator, text, query)
        assert (refused.status_code, error_of(refused)["code"], error_of(refused)["param"]) == (status, code, param)
    assert send(as_acme, DOUBLE).status_code == 403
    assert PriceVersion.objects.count() == before
    done = send(as_operator, JUMP, "?confirm=true").json()
    assert (len(done["changes"]), done["unchanged"], done["preview"]) == (1, 0, [])
    assert PriceVersion.objects.count() == before + 1

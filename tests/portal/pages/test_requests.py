"""The pages of requests: errors with their reason, split by whose they are, and search by id."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
REQUESTS = "/portal/tenants/acme/requests/"


@pytest.fixture
def now() -> datetime:
    """A time in the last hour."""
    return timezone.now() - timedelta(minutes=30)


@pytest.fixture
def used(world: World, now: datetime) -> World:
    """An answer, a failure, a client that disconnected, and seven refusals in one row."""
    gone = fixtures.answered(world, world.acme, now, 3)
    fixtures.store(
        [
            fixtures.answered(world, world.acme, now, 1),
            fixtures.failed(world, world.acme, now, 2),
            replace(gone, state="client_gone", http_status=499),
            fixtures.refused(world, world.acme, now, 4, refusals=7),
        ]
    )
    return world


def listed(page: str) -> int:
    """Return how many requests a page lists."""
    return page.count('data-testid="request"')


def test_only_the_platforms_failures_are_errors(used: World, signed_in: SignIn) -> None:
    page = signed_in(used.operator).get("/portal/tenants/acme/").content.decode()
    errors = page.split('data-testid="tile-errors"')[1].split("</div>")[0]
    assert "&amp;errors=platform" in errors
    assert ">1 <" in errors
    assert "33.3 %" in errors
    refused = page.split('data-testid="tile-refused"')[1].split("</div>")[0]
    assert ">7<" in refused
    assert "&amp;errors=client" in refused


@pytest.mark.parametrize(("query", "count"), [("", 4), ("errors=1", 2), ("errors=platform", 1), ("errors=client", 1)])
def test_errors_are_listed_by_whose_they_are(used: World, signed_in: SignIn, query: str, count: int) -> None:
    assert listed(signed_in(used.operator).get(f"{REQUESTS}?{query}").content.decode()) == count


def test_a_refusal_s_page_tells_why_and_how_often(used: World, signed_in: SignIn, now: datetime) -> None:
    browser = signed_in(used.acme.owner)
    page = browser.get(f"{REQUESTS}?errors=client").content.decode()
    assert "rate_limit_exceeded" in page
    assert "HTTP 429: Too many." in page
    assert "× 7" in page
    detail = browser.get(f"{REQUESTS}{fixtures.request_id(now, 4)}/").content.decode()
    assert "rate_limit_exceeded" in detail
    assert "Too many." in detail
    assert "7 requests" in detail
    assert "It was refused" in detail
    assert "Charged" not in detail


def test_a_request_is_found_by_its_id_or_by_its_clients(used: World, signed_in: SignIn, now: datetime) -> None:
    browser, found = signed_in(used.acme.owner), fixtures.request_id(now, 4)
    other_day = "from=2025-01-01T00:00Z&to=2025-01-02T00:00Z"
    assert listed(browser.get(f"{REQUESTS}?id={found}&{other_day}").content.decode()) == 1
    assert listed(browser.get(f"{REQUESTS}?id=theirs").content.decode()) == 1
    assert listed(browser.get(f"{REQUESTS}?id=nobodys").content.decode()) == 0
    stranger = signed_in(used.globex.owner)
    assert listed(stranger.get(f"/portal/tenants/globex/requests/?id={found}").content.decode()) == 0
    assert listed(signed_in(used.operator).get(f"/portal/requests/?id={found}").content.decode()) == 1


def test_a_traced_request_s_page_names_its_trace(used: World, signed_in: SignIn, now: datetime) -> None:
    browser = signed_in(used.acme.owner)
    traced = replace(fixtures.answered(used, used.acme, now, 6), traced=True)
    fixtures.store([traced])
    page = browser.get(f"{REQUESTS}{traced.id}/").content.decode()
    assert f'data-testid="trace">{traced.id.hex}<' in page
    assert 'data-testid="trace"' not in browser.get(f"{REQUESTS}{fixtures.request_id(now, 1)}/").content.decode()


def test_a_request_of_a_tenant_that_is_gone_is_listed_by_the_tenants_id(
    used: World, signed_in: SignIn, now: datetime
) -> None:
    gone = uuid4()
    fixtures.store([replace(fixtures.answered(used, used.acme, now, 5), tenant_id=gone)])
    page = signed_in(used.operator).get("/portal/requests/").content.decode()
    assert str(gone)[-8:] in page
    assert "?tenant=&amp;" not in page


def test_an_hour_is_charted_in_minutes_of_the_readers_clock(used: World, signed_in: SignIn) -> None:
    browser = signed_in(used.operator)
    browser.cookies["hearth_timezone"] = "Asia/Kolkata"
    page = browser.get("/portal/tenants/acme/?period=1h")
    (chart, *_) = page.context["charts"]
    assert {(after - before).total_seconds() for before, after in zip(chart.times, chart.times[1:], strict=False)} == {
        60
    }
    assert sum(point for each in chart.series for point in each.values) == 3
    days = browser.get("/portal/tenants/acme/?period=30d").context["charts"][0].times
    assert {each.strftime("%H:%M") for each in days} == {"18:30"}


def test_a_statement_under_a_cent_shows_what_it_is_made_of(used: World, signed_in: SignIn, now: datetime) -> None:
    page = signed_in(used.acme.owner).get(f"/portal/tenants/acme/statement/?month={now:%Y-%m}").content.decode()
    assert "$0.000312 before rounding" in page
    for amount in ("$0.00018", "$0.000012", "$0.00012", "−$0.000312"):
        assert amount in page


def test_a_request_s_page_shows_its_stages_its_attempts_and_what_is_near(
    used: World, signed_in: SignIn, now: datetime
) -> None:
    row = replace(fixtures.answered(used, used.acme, now, 8), queue_ms=20.0, end_user="u-1", replica_id=uuid4())
    broken = replace(
        fixtures.failed(used, used.acme, now + timedelta(milliseconds=30), 9),
        purpose="retry",
        source_id=row.id,
        replica_id=uuid4(),
    )
    fixtures.store([row, broken])
    page = signed_in(used.acme.owner).get(f"{REQUESTS}{row.id}/").content.decode()
    stages = page.split('data-testid="timeline"')[1]
    titles = (
        "Received",
        "Admitted",
        "miss",
        "Waited",
        "An attempt failed",
        "Routed by prefix",
        "First token",
        "completed",
    )
    places = [stages.index(title) for title in titles]
    assert places == sorted(places)
    assert "took 42 ms" in stages
    assert 'class="span"' in stages
    assert "end_user=u-1" in page
    assert f"key={used.acme.key.id}&amp;from=" in page
    assert str(row.replica_id) not in page and str(broken.replica_id)[-8:] not in page
    of_operator = signed_in(used.operator).get(f"{REQUESTS}{row.id}/").content.decode()
    assert f"replica={row.replica_id}&amp;from=" in of_operator
    assert f"An attempt failed on …{str(broken.replica_id)[-8:]}" in of_operator


def test_a_refused_request_s_page_says_what_to_do(used: World, signed_in: SignIn, now: datetime) -> None:
    page = signed_in(used.acme.owner).get(f"{REQUESTS}{fixtures.request_id(now, 4)}/").content.decode()
    why = page.split('data-testid="why"')[1].split("</div>")[0]
    assert "rate_limit_exceeded" in why
    assert "retry-after" in why
    assert "/portal/tenants/acme/limits/" in why
    assert "/docs/errors/rate_limit_exceeded" in why

"""Usage by member and by end user, links from groups to their requests, and latency beside sums."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from rest_framework.test import APIClient

from tenants.keys import keys
from tenants.models import ApiKey, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]


@pytest.fixture
def now() -> datetime:
    """A time in the last hour."""
    return timezone.now() - timedelta(minutes=30)


@pytest.fixture
def used(world: World, now: datetime) -> World:
    """Acme: two answers with a key of its owner's, for two end users; one with a key that no person made."""
    made = keys.issue(fixtures.OPERATOR, world.acme.project, name="laptop", scopes=["inference"]).key
    ApiKey.objects.filter(id=made.id).update(created_by=world.acme.owner)
    own = [replace(fixtures.answered(world, world.acme, now, number), key_id=made.id) for number in (1, 2)]
    fixtures.store(
        [
            replace(own[0], end_user="anna & co"),
            replace(own[1], end_user="bob"),
            fixtures.answered(world, world.acme, now, 3),
            replace(fixtures.answered(world, world.globex, now, 4), end_user="bob"),
        ]
    )
    return world


def requests_of(document: Any) -> dict[str, int]:
    """Return how many requests each group has."""
    return {group["name"]: group["sums"]["requests"] for group in document["groups"]}


def test_usage_is_summed_by_member_and_by_end_user(used: World, as_acme: APIClient, as_operator: APIClient) -> None:
    by_member = as_acme.get("/api/v1/usage/breakdown?group_by=member").json()
    assert requests_of(by_member) == {"acme-owner": 2, "": 1}
    assert by_member["groups"][0]["latency"]["ttft"]["requests"] == 2
    by_user = as_acme.get("/api/v1/usage/breakdown?group_by=end_user").json()
    assert requests_of(by_user) == {"anna & co": 1, "bob": 1, "": 1}
    assert {group["latency"] for group in by_user["groups"]} == {None}
    assert requests_of(as_operator.get("/api/v1/usage/breakdown?group_by=end_user").json())["bob"] == 2
    assert requests_of(as_operator.get("/api/v1/usage/breakdown?group_by=member").json()) == {"acme-owner": 2, "": 2}


def test_an_operators_name_is_seen_by_operators_alone(used: World, as_acme: APIClient, as_operator: APIClient) -> None:
    User.objects.filter(id=used.acme.owner.id).update(is_staff=True)
    address = "/api/v1/usage/breakdown?group_by=member"
    assert requests_of(as_acme.get(address).json()) == {"operator": 2, "": 1}
    assert requests_of(as_operator.get(address).json()) == {"acme-owner": 2, "": 2}


def test_a_stranger_sums_only_their_own(used: World, as_globex: APIClient, signed_in: SignIn) -> None:
    assert requests_of(as_globex.get("/api/v1/usage/breakdown?group_by=member").json()) == {"": 1}
    assert requests_of(as_globex.get("/api/v1/usage/breakdown?group_by=end_user").json()) == {"bob": 1}
    for by in ("member", "end_user"):
        assert as_globex.get(f"/api/v1/usage/breakdown?group_by={by}&tenant=acme").status_code == 404
        assert signed_in(used.globex.owner).get(f"/portal/tenants/acme/usage/?by={by}").status_code == 404


@pytest.mark.parametrize("by", ["project", "key", "member", "model", "day", "end_user"])
def test_each_row_leads_to_its_requests(used: World, signed_in: SignIn, by: str) -> None:
    browser = signed_in(used.acme.owner)
    page = browser.get(f"/portal/tenants/acme/usage/?by={by}&period=7d").content.decode()
    links = [part.split('"')[0] for part in page.split('class="linked" data-href="')[1:]]
    listed = 0
    for link in map(unescape, links):
        assert parse_qs(urlsplit(link).query), link
        listed += browser.get(link).content.decode().count('data-testid="request"')
    assert listed == {"member": 2, "end_user": 2}.get(by, 3)


def test_csv_names_members(used: World, signed_in: SignIn) -> None:
    answer = signed_in(used.acme.owner).get("/portal/tenants/acme/usage-by.csv?by=member")
    rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))
    assert [(row["name"], row["requests"]) for row in rows] == [("", "3"), ("acme-owner", "2"), ("", "1")]


def test_a_rotated_key_s_row_leads_to_the_requests_of_both(used: World, signed_in: SignIn, now: datetime) -> None:
    old = used.acme.key
    new = keys.rotate(fixtures.OPERATOR, old, timedelta(days=1)).key
    fixtures.store([replace(fixtures.answered(used, used.acme, now, 9), key_id=new.id)])
    page = signed_in(used.acme.owner).get(f"/portal/tenants/acme/requests/?key={new.id}").content.decode()
    assert page.count('data-testid="request"') == 2


def test_totals_and_series_have_latency(used: World, as_acme: APIClient) -> None:
    totals = as_acme.get("/api/v1/usage/totals").json()
    assert totals["latency"]["ttft"]["requests"] == 3
    points = as_acme.get("/api/v1/usage/series").json()["points"]
    assert sum(point["latency"]["ttft"]["requests"] for point in points) == 3
    assert {point["latency"]["tpot"]["p50_ms"] for point in points} == {None}


def test_overview_and_home_show_speed_and_lead_from_a_step_to_its_requests(used: World, signed_in: SignIn) -> None:
    for browser, path in (
        (signed_in(used.operator), "/portal/"),
        (signed_in(used.acme.owner), "/portal/tenants/acme/"),
    ):
        page = browser.get(f"{path}?period=24h").content.decode()
        for tile in ("request-rate", "token-rate", "ttft", "tpot"):
            assert f'data-testid="tile-{tile}"' in page
        assert "p50 · p95" in page.split('data-testid="tile-ttft"')[1].split("</div>")[0]
        for chart in ("throughput", "ttft"):
            assert f'data-testid="chart-{chart}"' in page
        table = page.split('data-testid="chart-requests"')[1].split("</table>")[0]
        links = [unescape(part.split('"')[0]) for part in table.split('<a href="')[1:]]
        counts = [browser.get(link).content.decode().count('data-testid="request"') for link in links[:3]]
        assert sum(counts) == (4 if path == "/portal/" else 3)

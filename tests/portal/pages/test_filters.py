"""Each filter of a page is in its address, and the links of the page keep it: other periods, pages and the CSV."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.test import Client
from django.utils import timezone
from lxml import html

from portal.pages import requests as requests_page
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
#: The pages with a form of filters, and what to choose in it so that there are rows.
PAGES: dict[str, dict[str, str]] = {
    "requests/": {"tenant": "acme", "model": "tiny-chat", "route": "prefix", "state": "complete"},
    "tenants/acme/requests/": {"model": "tiny-chat", "project": "default", "cache": "miss"},
    "usage/": {"by": "tag", "tag": "app", "tenant": "acme"},
    "tenants/acme/usage/": {"by": "tag", "tag": "app"},
    "fleet/events/": {"kind": "replica", "node": "n1"},
    "tenants/": {"q": "ac", "state": "active", "sort": "billed"},
    "audit/": {"action": "tenant.created"},
    "invoices/": {"month": "2026-03"},
    "payments/": {"state": "matched"},
}


@pytest.fixture
def used(world: World) -> World:
    """Three answers for acme, more than a page shows."""
    fixtures.fleet(world)
    now = timezone.now() - timedelta(minutes=30)
    fixtures.store([fixtures.answered(world, world.acme, now, number) for number in (1, 2, 3)])
    return world


def parameters(address: str) -> dict[str, str]:
    """Return the parameters of a link."""
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


@pytest.mark.parametrize("path", PAGES)
def test_links_of_a_page_keep_its_filters(
    used: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(requests_page, "PAGE_ROWS", 1)
    chosen = PAGES[path]
    answer = signed_in(used.operator).get(f"/portal/{path}?{urlencode(chosen)}")
    assert answer.status_code == 200
    page: Any = html.fromstring(answer.content.decode())
    periods = page.xpath("//nav[@data-testid='period']//a/@href")
    others = page.xpath("//*[@class='pager']//a/@href | //a[text()='CSV' and not(ancestor::*[@data-chart])]/@href")
    others += page.xpath("//th/a/@href | //nav[@data-testid='group-by']//a/@href")
    lost = {
        address: chosen.items() - parameters(address).items()
        for address in (*periods, *others)
        if {name for name, _ in chosen.items() - parameters(address).items()} - {"sort", "by"}
    }
    assert lost == {}
    for form in page.xpath("//main//form[not(@method='post')][not(contains(@class, 'search'))]"):
        kept = {each.get("name") for each in form.xpath(".//*[@name]")}
        assert chosen.keys() - kept == set(), "a form that is sent again loses a filter"


def test_links_between_reports_keep_the_period(used: World, signed_in: SignIn) -> None:
    operator = signed_in(used.operator)
    page: Any = html.fromstring(operator.get("/portal/routing/?period=7d&after=x").content.decode())
    rail = dict(zip(page.xpath("//nav//a/@data-testid"), page.xpath("//nav//a[@data-testid]/@href"), strict=True))
    assert (rail["rail-usage"], rail["rail-fleet"]) == ("/portal/usage/?period=7d", "/portal/fleet/")
    tabs: Any = html.fromstring(operator.get("/portal/tenants/acme/savings/?period=7d").content.decode())
    assert tabs.xpath("//a[@data-testid='tab-tenant-usage']/@href") == ["/portal/tenants/acme/usage/?period=7d"]
    wrong: Any = html.fromstring(operator.get("/portal/routing/?period=7x").content.decode())
    assert wrong.xpath("//a[@data-testid='rail-usage']/@href") == ["/portal/usage/"]


def test_refused_requests_are_listed_from_their_number(used: World, signed_in: SignIn) -> None:
    moment = timezone.now() - timedelta(minutes=20)
    fixtures.store([fixtures.refused(used, used.acme, moment, 9)])
    operator = signed_in(used.operator)
    for path in ("", "usage/?by=tenant", "usage/?by=model&tenant=acme", "tenants/acme/usage/?by=key"):
        page: Any = html.fromstring(operator.get(f"/portal/{path}").content.decode())
        [link, *_] = page.xpath("//td/a[@data-testid='refused']/@href")
        assert operator.get(link).content.decode().count('data-testid="request"') == 1, path


def test_the_list_shows_the_clients_id_that_was_searched(used: World, signed_in: SignIn) -> None:
    fixtures.store([fixtures.refused(used, used.acme, timezone.now() - timedelta(minutes=20), 9)])
    owner = signed_in(used.acme.owner)
    shown = {
        query: owner.get(f"/portal/tenants/acme/requests/?{query}").content.decode().count("client-request-id")
        for query in ("id=theirs", "code=rate_limit_exceeded")
    }
    assert shown == {"id=theirs": 1, "code=rate_limit_exceeded": 0}


def test_the_heading_names_the_chosen_tenant(used: World, signed_in: SignIn) -> None:
    operator = signed_in(used.operator)
    for path, heading in (("usage/", "Usage · Acme"), ("requests/", "Requests · Acme")):
        page: Any = html.fromstring(operator.get(f"/portal/{path}?tenant=acme").content.decode())
        assert page.xpath("string(//h1)") == heading
        assert ("acme", "Acme") in {(each.get("value"), each.get("label")) for each in page.xpath("//datalist/option")}

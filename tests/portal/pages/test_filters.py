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

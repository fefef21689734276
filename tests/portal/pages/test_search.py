"""The search box, and the filters of lists of requests: on pages, in the API and in CSV, for a stranger too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from lxml import html
from msgspec.structs import replace
from rest_framework.test import APIClient

from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey, User
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
    """An answer for an end user, one with a tag, a refusal, and one of another project by a key of a person's own."""
    research = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="research", name="Research")
    made = keys.issue(fixtures.OPERATOR, research, name="laptop", scopes=["inference"]).key
    ApiKey.objects.filter(id=made.id).update(created_by=world.acme.owner)
    fixtures.store(
        [
            replace(fixtures.answered(world, world.acme, now, 1), end_user="u-1"),
            replace(fixtures.answered(world, world.acme, now, 2), tags={"app": "search"}, route_reason="load"),
            fixtures.refused(world, world.acme, now, 3),
            replace(fixtures.answered(world, world.acme, now, 4), project_id=research.id, key_id=made.id),
        ]
    )
    return world


FILTERS = {
    "end_user=u-1": {1},
    "end_user=u-2": set(),
    "tag=app%3Dsearch": {2},
    "code=rate_limit_exceeded": {3},
    "status=429": {3},
    "status=200": {1, 2, 4},
    "project=research": {4},
    "project=default": {1, 2, 3},
    "key=laptop": {4},
    "member=acme-owner": {4},
    "member=nobody": set(),
    "route=load": {2},
    "model=tiny-chat&cache=miss&end_user=u-1": {1},
}


@pytest.mark.parametrize(("query", "numbers"), FILTERS.items(), ids=FILTERS)
def test_pages_api_and_csv_take_the_same_filters(
    used: World, signed_in: SignIn, as_acme: APIClient, now: datetime, query: str, numbers: set[int]
) -> None:
    ids = {str(fixtures.request_id(now, number)) for number in numbers}
    browser = signed_in(used.acme.owner)
    page = browser.get(f"{REQUESTS}?{query}").content.decode()
    assert page.count('data-testid="request"') == len(ids)
    assert all(f'data-request="{each}"' in page for each in ids)
    answer = as_acme.get(f"/api/v1/usage?{query}")
    assert {each["id"] for each in answer.json()["data"]} == ids
    csv = b"".join(browser.get(f"/portal/tenants/acme/requests.csv?{query}"))
    assert len(csv.splitlines()) == 1 + len(ids)


def test_a_key_is_found_by_what_is_visible_of_it(used: World, signed_in: SignIn) -> None:
    page = signed_in(used.acme.owner).get(f"{REQUESTS}?key=hk_{used.acme.key.public_id}").content.decode()
    assert page.count('data-testid="request"') == 3


def test_the_requests_of_a_key_that_is_deleted_are_listed_by_its_id(
    used: World, signed_in: SignIn, now: datetime
) -> None:
    gone = uuid4()
    fixtures.store([replace(fixtures.answered(used, used.acme, now, 9), key_id=gone)])
    counts = [
        signed_in(each).get(f"/portal/tenants/{slug}/requests/?key={gone}").content.decode().count('"request"')
        for each, slug in ((used.acme.owner, "acme"), (used.globex.owner, "globex"))
    ]
    assert counts == [1, 0]


@pytest.mark.parametrize("wrong", ["key=nothing", "project=nothing", "status=many", "tag=app", "state=odd"])
def test_a_wrong_filter_keeps_the_form_and_says_what_is_allowed(used: World, signed_in: SignIn, wrong: str) -> None:
    answer = signed_in(used.acme.owner).get(f"{REQUESTS}?{wrong}&end_user=kept")
    page = answer.content.decode()
    assert answer.status_code == 400
    assert 'data-testid="problem"' in page
    assert 'value="kept"' in page


def test_the_box_leads_from_an_id_to_its_request(used: World, signed_in: SignIn, now: datetime) -> None:
    found = fixtures.request_id(now, 1)
    for browser in (signed_in(used.acme.owner), signed_in(used.operator)):
        for text in (str(found), f"req_{found}", found.hex):
            assert browser.get("/portal/search/", {"q": text})["Location"] == f"{REQUESTS}{found}/"
        assert browser.get("/portal/search/", {"q": "theirs"})["Location"].startswith(REQUESTS)
        assert str(found) in browser.get("/portal/search/", {"q": str(found)[:13]}).content.decode()


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("laptop", "key=hk_"),
        ("research", "project=research"),
        ("u-1", "end_user=u-1"),
        ("app=search", "tag=app%3Dsearch"),
        ("rate_limit_exceeded", "code=rate_limit_exceeded"),
        ("429", "status=429"),
        ("tiny", "model=tiny-chat"),
    ],
)
def test_the_box_finds_what_requests_are_listed_by(used: World, signed_in: SignIn, text: str, link: str) -> None:
    for browser in (signed_in(used.acme.owner), signed_in(used.operator)):
        page = browser.get("/portal/search/", {"q": text}).content.decode()
        assert f"&amp;{link}" in page.split('data-testid="matches"')[1]


def test_an_operator_finds_tenants(used: World, signed_in: SignIn) -> None:
    assert "/portal/tenants/globex/" in signed_in(used.operator).get("/portal/search/?q=Globex").content.decode()


def test_a_stranger_finds_nothing_of_it(used: World, signed_in: SignIn, as_globex: APIClient, now: datetime) -> None:
    browser = signed_in(used.globex.owner)
    found = fixtures.request_id(now, 1)
    for text in (str(found), str(found)[:13], "theirs", "laptop", "research", "u-1", used.acme.key.public_id, "acme"):
        answer = browser.get("/portal/search/", {"q": text})
        assert answer.status_code == 200
        assert 'data-testid="empty"' in answer.content.decode()
    own = "/portal/tenants/globex/requests/"
    for query in (f"key={used.acme.key.id}", "end_user=u-1", "member=acme-owner"):
        assert browser.get(f"{own}?{query}").content.decode().count('data-testid="request"') == 0
        assert as_globex.get(f"/api/v1/usage?{query}").json()["data"] == []
    for query in ("key=laptop", "project=research"):
        assert browser.get(f"{own}?{query}").status_code == as_globex.get(f"/api/v1/usage?{query}").status_code == 400
    assert as_globex.get(f"/api/v1/usage?project={used.acme.project.id}&tenant=acme").status_code == 404


def test_the_rail_of_the_box_is_that_of_the_tenant(used: World, signed_in: SignIn) -> None:
    page = html.fromstring(signed_in(used.acme.owner).get("/portal/search/", {"q": "xyzzy"}).content.decode())
    assert page.xpath("//nav/div[@class='heading']/text()") == [used.acme.tenant.name]


@pytest.mark.parametrize("text", ["", "%00", "%F0%9D%84%9E" * 300, "'; --", "ffffffff", "=", "hk_", "%"])
def test_any_text_is_answered(used: World, signed_in: SignIn, text: str) -> None:
    for person in (used.acme.owner, used.operator):
        assert signed_in(person).get(f"/portal/search/?q={text}").status_code in {200, 400}


def test_the_documentation_is_found_by_words_of_its_sections(used: World, signed_in: SignIn) -> None:
    owner = signed_in(used.acme.owner)

    def found(text: str) -> list[tuple[str, str]]:
        page = html.fromstring(owner.get("/portal/search/", {"q": text}).content.decode())
        links = page.xpath("//table[@data-testid='documented']//td/a")
        return [(link.text, link.get("href")) for link in links]

    assert found("429")[0] == ("Limits and budgets", "/docs/limits/")
    assert ("budget_exceeded", "/docs/errors/budget_exceeded") in found("budget")
    assert ("Erase it", "/docs/content-log/#erase-it") in found("content erase")
    assert "Prediction cache: whole answers" in dict(found("no-cache"))
    assert found("cache miss") == found("Misses caches")
    assert "/docs/caching/#prediction-cache-whole-answers" in dict(found("cache miss")).values()
    assert found("42") == found("xyzzy") == []
    for _, address in found("prefix cache"):
        assert Client().get(address).status_code == 200

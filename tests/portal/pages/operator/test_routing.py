"""Page Routing and its API: shares of reasons, predicted against actual cached tokens, and whether sessions stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from uuid import uuid4

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace
from redis import Redis
from rest_framework.test import APIClient

from routing import decision_record
from routing.explanation import Decision
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]


@pytest.fixture
def used(world: World) -> World:
    """Two answers by prefix, for one of which 100 tokens too many were predicted; one by load; a hit."""
    now = timezone.now() - timedelta(minutes=30)
    first, second = uuid4(), uuid4()
    rows = [fixtures.answered(world, world.acme, now, number, replica_id=first) for number in (1, 2)]
    fixtures.store(
        [
            replace(rows[0], predicted_cached_tokens=400),
            replace(rows[1], predicted_cached_tokens=500),
            replace(fixtures.answered(world, world.globex, now, 3, replica_id=second), route_reason="load"),
            fixtures.predicted(world, world.acme, now, 4),
        ]
    )
    return world


@pytest.fixture
def decisions() -> Iterator[None]:
    """Four decisions: two at the home of their session, one away from it, one without a session."""
    home, other = uuid4(), uuid4()
    redis = Redis.from_url(settings.REDIS_CACHE_URL)
    redis.delete(decision_record.KEY)
    for at, of in ((home, home), (home, home), (other, home), (other, None)):
        made = Decision(
            request_id=uuid4(),
            tenant_id=uuid4(),
            model="m",
            at=0.0,
            replica_id=at,
            reason="session",
            home=of,
            prompt_tokens=1,
            nearest_warm_tokens=0,
            diverged_message=None,
            candidates=(),
            candidates_count=0,
        )
        redis.rpush(decision_record.KEY, decision_record.encode(made))
    redis.rpush(decision_record.KEY, b"of another version")
    yield
    redis.delete(decision_record.KEY)
    redis.close()


def test_the_api_compares_prediction_and_count(used: World, as_operator: APIClient, decisions: None) -> None:
    found = as_operator.get("/api/v1/fleet/routing-quality").json()
    assert found["total"]["requests"] == 3
    reasons = {each["reason"]: each for each in found["by_reason"]}
    assert {name: each["requests"] for name, each in reasons.items()} == {"prefix": 2, "load": 1}
    by_prefix = reasons["prefix"]
    assert (by_prefix["prompt_tokens"], by_prefix["cached_tokens"]) == (2000, 800)
    assert (by_prefix["predicted_tokens"], by_prefix["off_tokens"], by_prefix["counted_tokens"]) == (900, 100, 2000)
    assert reasons["load"]["counted_tokens"] == 0
    assert [each["requests"] for each in found["by_replica"]] == [2, 1]
    assert [each["model"] for each in found["by_model"]] == [fixtures.MODEL]
    assert found["stickiness"] == {"decisions": 4, "with_home": 3, "at_home": 2}


def test_the_page_shows_it_and_leads_to_the_requests(used: World, signed_in: SignIn, decisions: None) -> None:
    browser = signed_in(used.operator)
    page = browser.get("/portal/routing/").content.decode()
    assert "66.7 %" in page.split('data-testid="stickiness"')[1].split("</div>")[0]
    for table, counts in (("by-reason", [2, 1]), ("by-replica", [2, 1]), ("by-model", [4])):
        rows = page.split(f'data-testid="{table}"')[1].split("</table>")[0].split('data-href="')[1:]
        links = [unescape(part.split('"')[0]) for part in rows]
        listed = [browser.get(link).content.decode().count('data-testid="request"') for link in links]
        assert listed == counts, table


def test_a_period_without_requests_says_so(world: World, signed_in: SignIn) -> None:
    assert 'data-testid="empty"' in signed_in(world.operator).get("/portal/routing/").content.decode()

"""The tenants and users of the portal's tests, and clients that are signed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from pytest_django.fixtures import Settings
from redis import Redis
from rest_framework.test import APIClient

from portal.access.rights.change_limit import ChangeLimit
from tenants.keys import tokens
from tenants.models import User
from tests.portal import fixtures
from tests.portal.fixtures import World


@pytest.fixture
def world(db: None) -> World:
    """Two tenants, an operator, a model with a price."""
    return fixtures.build()


@pytest.fixture(autouse=True)
def in_one_thread(settings: Settings) -> None:
    """Leave out the one middleware that is asynchronous, which only streams of the inference API need.

    With it, Django's client makes a thread and an event loop for each request.
    """
    settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if each != "gateway.views.closing"]


@pytest.fixture(autouse=True)
def no_counts() -> None:
    """Reset the counts of wrong passwords and of changes between tests."""
    ChangeLimit.cache.clear()
    redis = Redis.from_url(settings.REDIS_LIMITS_URL)
    for key in redis.scan_iter("hearth:guess:*"):
        redis.delete(key)
    redis.close()


@pytest.fixture
def signed_in() -> Callable[[User], Client]:
    """Return a function that signs a user in and returns the client."""

    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def as_operator(world: World) -> APIClient:
    """A client with an operator's token."""
    return bearer(tokens.issue(fixtures.OPERATOR, world.operator, name="test").secret)


@pytest.fixture
def as_acme(world: World) -> APIClient:
    """A client with acme's key."""
    return bearer(world.acme.secret)


@pytest.fixture
def as_globex(world: World) -> APIClient:
    """A client with the other tenant's key."""
    return bearer(world.globex.secret)


def bearer(secret: str) -> APIClient:
    """Return a client that sends this secret."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def error_of(answer: Any) -> dict[str, Any]:
    """Check that a response has OpenAI's error envelope, and return the error."""
    document = answer.json()
    assert set(document) == {"error"}
    assert set(document["error"]) - {"doc_url"} == {"message", "type", "param", "code"}
    error: dict[str, Any] = document["error"]
    return error

"""Providers of acme and globex, and signing in through them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from hearth.celery import app
from portal import tasks
from tenants import networks
from tenants.identity import providers
from tenants.identity.models import ProviderSession, SignInProvider
from tenants.identity.providers import ProviderTerms
from tenants.models import Tenant
from tests.portal import fixtures, identity_provider
from tests.portal.fixtures import World
from tests.portal.identity_provider import CLIENT, SECRET, Provider


@pytest.fixture(autouse=True)
def no_rates() -> None:
    """Reset what allauth counts."""
    cache.clear()


@pytest.fixture
def mailing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """E-mails are sent, into ``mail.outbox``, and what goes to the role background runs at once."""

    def run(name: str, args: tuple[str, str], **more: object) -> None:
        assert name == tasks.mail_password_reset.name
        tasks.mail_password_reset(*args)

    settings.EMAIL_IS_SENT = True
    monkeypatch.setattr(app, "send_task", run)


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    """A provider on this machine, which may be asked."""
    settings.WEBHOOK_NETWORKS = networks.parse(["127.0.0.0/8"])
    with identity_provider.running() as running:
        yield running


@pytest.fixture
def acme(world: World, provider: Provider) -> SignInProvider:
    """acme's provider."""
    return set_up(world.acme.tenant, provider)


def set_up(tenant: Tenant, provider: Provider, **more: Any) -> SignInProvider:
    """Set a tenant's provider: the group dev are developers, admins are owners."""
    given = {"roles": (("admins", "owner"), ("dev", "developer"))} | more
    terms = ProviderTerms(issuer=provider.issuer, client_id=CLIENT, client_secret=SECRET, **given)
    return providers.put(fixtures.OPERATOR, tenant, terms)


def back(browser: Client, provider: Provider, slug: str = "acme", query: str = "") -> str:
    """Begin a sign-in; return the path and query with which the provider sends the browser back."""
    begun = browser.get(f"/portal/login/{slug}/begin/{query}")
    assert begun.status_code == 302, begun.content.decode()
    parts = urlsplit(provider.authorize(urlsplit(begun["Location"]).query))
    return f"{parts.path}?{parts.query}"


def through(browser: Client, provider: Provider, slug: str = "acme", query: str = "") -> Any:
    """Sign in through a provider; return the last answer."""
    return browser.get(back(browser, provider, slug, query))


def overdue(minutes: int = 16) -> None:
    """Let the time since the last confirmation of every session pass."""
    ProviderSession.objects.update(confirmed_at=timezone.now() - timedelta(minutes=minutes))

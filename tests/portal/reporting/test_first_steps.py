"""The first steps say what is there, step by step, and go away with the first request."""

from __future__ import annotations

import html
from collections.abc import Callable

from django.test import Client
from django.utils import timezone

from catalogue import registry as catalogue
from catalogue.models import Model
from catalogue.registry import Description
from portal.reporting import first_steps
from tenants import registry
from tenants.models import ApiKey, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import MODEL, OPERATOR, World
from workers.models import Deployment

SignIn = Callable[[User], Client]


def done() -> list[bool]:
    """Return which steps are done."""
    found = first_steps.read()
    assert found is not None
    return [step.is_done for step in found.steps]


def test_each_step_is_done_once_its_thing_is_there(world: World, signed_in: SignIn) -> None:
    found = first_steps.read()
    assert found is not None
    assert (found.model, found.next and found.next.key) == ("", "model")
    description = Description(name="dear", source="/models/dear", engine="simulated", context_length_tokens=0)
    revision = catalogue.register(OPERATOR, Tenant.objects.get(slug="platform"), description)
    Deployment.objects.create(name="dear", revision=revision)
    assert done() == [True, False, True, True]
    fixtures.fleet(world)
    assert done() == [True, True, True, True]
    shown = html.unescape(signed_in(world.operator).get("/portal/").content.decode())
    assert "First steps" in shown
    assert f'"model": "{MODEL}"' in shown
    ApiKey.objects.update(revoked_at=timezone.now())
    assert done() == [True, True, True, False]
    for tenancy in (world.acme, world.globex):
        registry.archive(OPERATOR, tenancy.tenant)
    assert done() == [True, True, False, False]
    Model.objects.update(archived_at=timezone.now())
    assert done() == [False, False, False, False]


def test_the_first_request_is_noticed_and_ends_the_steps(world: World, signed_in: SignIn) -> None:
    fixtures.fleet(world)
    operator = signed_in(world.operator)
    waiting = operator.get("/portal/first-steps/").content.decode()
    assert 'hx-trigger="every 3s"' in waiting
    fixtures.store([fixtures.answered(world, world.acme, timezone.now(), 1)])
    assert first_steps.read() is None
    noticed = operator.get("/portal/first-steps/").content.decode()
    assert "The first request has come" in noticed
    assert "hx-trigger" not in noticed
    assert "First steps" not in operator.get("/portal/").content.decode()

"""A form that is refused comes back with what was typed, and with the error at the field it is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from msgspec.structs import replace

from tenants.models import AuditEntry, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
TENANT = "/portal/tenants/acme/"


@pytest.mark.parametrize(
    ("path", "form", "field", "problem"),
    [
        (
            f"{TENANT}limits/set/",
            {"for": "project:default", "requests_per_minute": "-1", "tokens_per_minute": "777"},
            "limit-requests_per_minute",
            "Enter a whole number from 0 to 2,147,483,647, or nothing for unlimited.",
        ),
        (
            f"{TENANT}budgets/set/",
            {"for": "tenant", "limit": "1e9", "period": "week", "alert_percents": "50 777"},
            "budget-limit",
            "Enter an amount such as 25 or 0.50, with at most twelve decimals.",
        ),
        (
            f"{TENANT}budgets/set/",
            {"for": "tenant", "limit": "777", "alert_percents": "50 101"},
            "budget-alert_percents",
            "Enter whole numbers from 1 to 100, such as 50 80 95.",
        ),
        (
            f"{TENANT}policy/",
            {"queue_seconds": "3601", "queue_requests": "777"},
            "policy-queue_seconds",
            "Enter a whole number from 0 to 3,600.",
        ),
        (
            f"{TENANT}policy/",
            {"session_headers": "cookie", "queue_requests": "777"},
            "policy-session_headers",
            "“cookie” is not valid. Use headers that carry no secret.",
        ),
        (
            f"{TENANT}policy/",
            {"salt_epoch": "0", "queue_requests": "777"},
            "policy-salt_epoch",
            "Enter a whole number from 1 to 2,147,483,647.",
        ),
        ("/portal/create-tenant/", {"slug": "Bad Slug", "name": "777"}, "tenant-slug", "“Bad Slug” is not valid."),
        ("/portal/create-tenant/", {"slug": "acme", "name": "777"}, "tenant-slug", "There is a tenant acme already."),
        (
            f"{TENANT}cache/set/",
            {"for": "project:default", "ttl_seconds": "long", "writes_per_minute": "777"},
            "cache-ttl_seconds",
            "Enter a whole number from 0 to 2,592,000, or nothing for inherited.",
        ),
        (
            f"{TENANT}keys/create/",
            {"name": "777" + "x" * 200, "project": "default"},
            "key-name",
            "Enter a name of at most 200 characters.",
        ),
        (f"{TENANT}projects/", {"slug": "Bad Slug", "name": "777"}, "project-slug", "Bad Slug"),
        (
            f"/portal/models/{fixtures.MODEL}/",
            {"name": "", "aliases": "777", "visibility": "public"},
            "model-name",
            "Enter a name of at most 200 characters.",
        ),
        (
            f"{TENANT}keys/create/",
            {"name": "777", "project": "none"},
            "key-project",
            "Choose one of the list.",
        ),
    ],
)
def test_a_refused_form_keeps_its_input_and_names_the_field(
    world: World, signed_in: SignIn, path: str, form: dict[str, str], field: str, problem: str
) -> None:
    browser, before = signed_in(world.operator), AuditEntry.objects.count()
    answer = browser.post(path, form)
    page = answer.content.decode()
    assert answer.status_code == 400
    assert 'role="alert">Nothing was changed.' in page
    error = re.search(rf'id="{field}_error">([^<]*)<', page)
    assert error is not None
    assert problem in error[1]
    wrong = re.search(rf'<(input|select)[^>]*id="{field}"[^>]*>', page)
    assert wrong is not None
    assert 'aria-invalid="true"' in wrong[0]
    assert "autofocus" in wrong[0]
    assert f"{field}_error" in wrong[0]
    assert re.search(r'value="[^"]*777', page)
    assert AuditEntry.objects.count() == before
    assert "requests_per_minute &#x27;" not in page


def test_a_model_of_another_tenant_is_an_error_of_the_field(world: World, signed_in: SignIn) -> None:
    form = {"for": "project:default", "model": "theirs", "requests_per_minute": "5"}
    answer = signed_in(world.acme.owner).post(f"{TENANT}limits/set/", form)
    assert answer.context["limit_form"].errors == {"model": ["There is no model theirs that this tenant may call."]}


def test_a_dialog_of_the_fleet_keeps_its_input(world: World, signed_in: SignIn) -> None:
    fixtures.fleet(world)
    answer = signed_in(world.operator).post(f"/portal/fleet/scale/{fixtures.MODEL}/", {"minimum": "5", "maximum": "4"})
    assert answer.status_code == 400
    assert re.search(r'name="minimum"[^>]*value="5"', answer.content.decode())


def test_a_request_s_end_is_in_words(world: World, signed_in: SignIn) -> None:
    now = timezone.now() - timedelta(minutes=5)
    gone = replace(fixtures.answered(world, world.acme, now, 2), state="client_gone")
    fixtures.store([fixtures.failed(world, world.acme, now, 1), gone])
    page = signed_in(world.acme.owner).get(f"{TENANT}requests/").content.decode()
    for text, code in (("client disconnected", "client_gone"), ("engine failed", "engine_error")):
        assert text in page
        assert f">{code}<" not in page

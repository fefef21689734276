"""``/api/v1/``: which credentials are accepted, and which are refused."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from rest_framework.test import APIClient

from tenants import registry
from tenants.keys import keys
from tenants.models import AuditEntry, Membership, OperatorToken
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import PASSWORD, World


def test_an_operator_exchanges_a_password_for_a_token_that_works(world: World) -> None:
    answer = APIClient().post(
        "/api/v1/tokens", {"username": "ada", "password": PASSWORD, "name": "laptop"}, format="json"
    )
    assert answer.status_code == 201
    secret = answer.json()["secret"]
    assert secret.startswith("ho_")
    assert bearer(secret).get("/api/v1/tenants").status_code == 200
    assert AuditEntry.objects.filter(action="token.issued", actor="ada").count() == 1


def test_the_documented_commands_make_an_operator_with_a_token_and_an_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", PASSWORD)
    call_command("createsuperuser", "--noinput", "--username", "grace", "--email", "grace@example.com", verbosity=0)
    answer = APIClient().post("/api/v1/tokens", {"username": "grace", "password": PASSWORD}, format="json")
    assert bearer(answer.json()["secret"]).get("/api/v1/tenants").status_code == 200
    documented = (Path(__file__).parents[3] / "docs" / "operations" / "people-and-secrets.md").read_text()
    called = next(line for line in documented.splitlines() if "hearth manage members set" in line)
    call_command(*called.partition("hearth manage ")[2].partition("#")[0].split(), stdout=StringIO())
    assert Membership.objects.get(user__username="mary", tenant=world.acme.tenant).role == Membership.Role.OWNER


def test_a_revoked_token_opens_nothing(world: World, as_operator: APIClient) -> None:
    token = OperatorToken.objects.get()
    assert as_operator.delete(f"/api/v1/tokens/{token.id}").status_code == 200
    answer = as_operator.get("/api/v1/tenants")
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"


def test_wrong_passwords_are_counted_and_then_even_the_right_one_waits(world: World) -> None:
    client = APIClient()
    for _ in range(10):
        wrong = client.post("/api/v1/tokens", {"username": "ada", "password": "wrong"}, format="json")
        assert wrong.status_code == 401
        assert wrong["WWW-Authenticate"].startswith("Bearer")
        assert error_of(wrong)["code"] == "invalid_credentials"
    refused = client.post("/api/v1/tokens", {"username": "ada", "password": PASSWORD}, format="json")
    assert refused.status_code == 429
    assert error_of(refused)["code"] == "too_many_attempts"
    assert int(refused["Retry-After"]) > 0
    assert OperatorToken.objects.count() == 0


def test_a_member_gets_no_operator_token(world: World) -> None:
    answer = APIClient().post("/api/v1/tokens", {"username": "acme-owner", "password": PASSWORD}, format="json")
    assert answer.status_code == 403
    assert OperatorToken.objects.count() == 0


@pytest.mark.parametrize(
    "header", ["Bearer nonsense", "Bearer hk_aaaaaaaaaaaa_x", "Basic YWRhOng=", "Bearer", "Bearer "]
)
def test_a_header_that_opens_nothing_is_refused(world: World, header: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    answer = client.get("/api/v1/tenants")
    assert answer.status_code == 401
    assert error_of(answer)["type"] == "authentication_error"
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_nobody_without_credentials_reads_anything(world: World) -> None:
    for path in ("tenants", "tenants/acme", "models", "fleet", "prices", "audit"):
        answer = APIClient().get(f"/api/v1/{path}")
        assert answer.status_code == 401, path
        assert answer["WWW-Authenticate"] == 'Bearer realm="hearth"', path
        assert error_of(answer)["type"] == "authentication_error"


def test_a_revoked_key_and_a_suspended_tenant_read_nothing(world: World, as_acme: APIClient) -> None:
    registry.suspend(fixtures.OPERATOR, world.acme.tenant)
    assert as_acme.get("/api/v1/tenants").status_code == 401
    registry.resume(fixtures.OPERATOR, world.acme.tenant)
    assert as_acme.get("/api/v1/tenants").status_code == 200
    keys.revoke(fixtures.OPERATOR, world.acme.key)
    assert as_acme.get("/api/v1/tenants").status_code == 401


def test_a_session_changes_nothing_without_a_csrf_token(world: World) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.operator)
    assert browser.get("/api/v1/tenants").status_code == 200
    answer = browser.post("/api/v1/tenants/acme/suspend")
    assert answer.status_code == 403
    world.acme.tenant.refresh_from_db()
    assert world.acme.tenant.state == "active"

"""What names a tenant's sessions, how long they last and how they are routed: set by operators, read by members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from tenants import registry
from tenants.models import AuditEntry, TenantPolicy, User
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
DEFAULT = {"session_headers": ["x-session-id"], "session_ttl_seconds": 3600, "session_affinity": "cheapest"}
CHANGED = {"session_headers": ["x-thread-id", "x-task"], "session_ttl_seconds": 0, "session_affinity": "strict"}
ACME = "/api/v1/tenants/acme"
PAGE = "/portal/tenants/acme/policy/"


def terms(client: APIClient) -> dict[str, Any]:
    """Return what acme's policy says of sessions."""
    policy = client.get(ACME).json()["policy"]
    return {name: policy[name] for name in DEFAULT}


def test_an_operator_sets_them_and_the_tenant_reads_them(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    assert terms(as_acme) == DEFAULT
    sent = {**CHANGED, "session_headers": ["X-Thread-Id", "x-task", "x-thread-id"]}
    assert as_operator.patch(ACME, sent, format="json").json()["policy"]["version"] == 2
    assert terms(as_acme) == terms(as_operator) == CHANGED
    entry = AuditEntry.objects.get(action="policy.changed")
    assert {name: ((entry.before or {})[name], (entry.after or {})[name]) for name in DEFAULT} == {
        name: (DEFAULT[name], CHANGED[name]) for name in DEFAULT
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_headers", "x-session-id"),
        ("session_headers", ["authorization"]),
        ("session_headers", ["x session"]),
        ("session_headers", [f"x-{number}" for number in range(9)]),
        ("session_headers", ["x" * 65]),
        ("session_headers", None),
        ("session_ttl_seconds", 604_801),
        ("session_affinity", "always"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(
    world: World, as_operator: APIClient, field: str, value: object
) -> None:
    answer = as_operator.patch(ACME, {field: value}, format="json")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(field)
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1


def test_a_stranger_and_members_change_nothing(world: World, as_globex: APIClient, as_acme: APIClient) -> None:
    for client in (as_globex, as_acme):
        assert client.patch(ACME, CHANGED, format="json").status_code == 403
    assert registry.policy_of(world.acme.tenant).version == 1


def test_the_page_sets_them_and_shows_them_to_members(world: World, signed_in: SignIn) -> None:
    typed = {"session_headers": "X-Thread-Id, x-task", "session_ttl_seconds": "7200", "session_affinity": "strict"}
    for stranger in (world.globex.owner, world.acme.owner):
        assert signed_in(stranger).post(PAGE, typed).status_code == 404
    browser = signed_in(world.operator)
    assert browser.post(PAGE, typed).status_code == 302
    policy = registry.policy_of(world.acme.tenant)
    assert (policy.session_headers, policy.session_ttl_seconds, policy.session_affinity) == (
        ["x-thread-id", "x-task"],
        7200,
        "strict",
    )
    assert 'value="x-thread-id, x-task"' in browser.get(PAGE).content.decode()
    seen = signed_in(world.acme.owner).get(PAGE).content.decode()
    for text in ("x-thread-id, x-task", "2 h", "at its home while that is ready"):
        assert text in seen, text
    assert browser.post(PAGE, {"queue_seconds": "5"}).status_code == 302
    assert registry.policy_of(world.acme.tenant).session_headers == ["x-thread-id", "x-task"]
    assert browser.post(PAGE, {"session_headers": ""}).status_code == 302
    assert registry.policy_of(world.acme.tenant).session_headers == []
    assert registry.policy_of(world.globex.tenant).version == 1

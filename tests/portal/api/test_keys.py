"""``/api/v1/tenants/{tenant}/keys``: who may change and rotate keys, and that keys grant no more than they have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import networks
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Limit
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

KEYS = "/api/v1/tenants/acme/keys"
OFFICE = ["192.0.2.0/24"]


def manager(world: World, **rights: Any) -> APIClient:
    """Return a client with a key of acme that may manage keys and has only these rights."""
    rights = {"scopes": ("management:read", "management:write"), **rights}
    return bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="manager", **rights).secret)


def test_a_key_is_made_with_networks_and_shown_with_them(world: World, as_acme: APIClient) -> None:
    asked = {"name": "office", "allowed_networks": ["192.0.2.0/24", "2001:db8::1"]}
    made = as_acme.post(KEYS, asked, format="json")
    assert (made.status_code, made.json()["allowed_networks"]) == (201, ["192.0.2.0/24", "2001:db8::1/128"])
    shown = as_acme.get(f"{KEYS}/{made.json()['id']}").json()
    assert (shown["allowed_networks"], shown["rotated_from"]) == (["192.0.2.0/24", "2001:db8::1/128"], None)


def test_what_a_key_may_do_is_changed_and_written_down(world: World, as_acme: APIClient) -> None:
    key = world.acme.key
    expires_at = timezone.now() + timedelta(days=9)
    change = {
        "name": "renamed",
        "scopes": ["inference"],
        "allowed_models": ["tiny-chat"],
        "allowed_networks": ["127.0.0.1"],
        "expires_at": expires_at.isoformat(),
    }
    answer = as_acme.patch(f"{KEYS}/{key.id}", change, format="json")
    assert answer.status_code == 200
    key.refresh_from_db()
    assert (key.name, key.scopes, key.allowed_models) == ("renamed", ["inference"], ["tiny-chat"])
    assert (key.allowed_networks, key.expires_at) == (["127.0.0.1/32"], expires_at)
    entry = AuditEntry.objects.get(action="key.changed")
    assert (entry.actor_kind, entry.actor, entry.object_id) == ("key", key.public_id, str(key.id))


def test_an_expiry_is_taken_away_and_what_is_absent_stays(world: World, as_operator: APIClient) -> None:
    key = keys.issue(fixtures.OPERATOR, world.acme.project, name="short", expires_at=timezone.now() + timedelta(1)).key
    answer = as_operator.patch(f"{KEYS}/{key.id}", {"expires_at": None}, format="json")
    assert (answer.json()["expires_at"], answer.json()["name"]) == (None, "short")
    assert as_operator.patch(f"{KEYS}/{key.id}", {}, format="json").status_code == 200
    assert AuditEntry.objects.filter(action="key.changed").count() == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"allowed_networks": ["10.0.0.1/8"]}, "allowed_networks"),
        ({"allowed_networks": ["office"]}, "allowed_networks"),
        ({"allowed_networks": [f"10.0.{number}.0/24" for number in range(65)]}, "allowed_networks"),
        ({"allowed_networks": "10.0.0.0/8"}, "allowed_networks"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes.0"),
        ({"name": ""}, "name"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"allowed_model": ["small"]}, "allowed_model"),
        ({"project": "other"}, "project"),
    ],
)
def test_a_change_that_cannot_be_names_the_field_and_changes_nothing(
    world: World, as_acme: APIClient, change: dict[str, Any], param: str
) -> None:
    answer = as_acme.patch(f"{KEYS}/{world.acme.key.id}", change, format="json")
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert not AuditEntry.objects.filter(action="key.changed").exists()


def test_a_revoked_key_is_neither_changed_nor_rotated(world: World, as_operator: APIClient) -> None:
    keys.revoke(fixtures.OPERATOR, world.acme.key)
    path = f"{KEYS}/{world.acme.key.id}"
    for answer in (
        as_operator.patch(path, {"name": "late"}, format="json"),
        as_operator.post(f"{path}/rotate", {}, format="json"),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (409, "not_allowed")


def test_a_rotated_key_works_until_the_overlap_ends_and_its_successor_has_its_limits(
    world: World, as_operator: APIClient
) -> None:
    key = world.acme.key
    limit = Limit.objects.create(tenant=world.acme.tenant, key=key, requests_per_minute=60)
    answer = as_operator.post(f"{KEYS}/{key.id}/rotate", {"overlap_seconds": 3600}, format="json")
    assert answer.status_code == 201
    made = answer.json()
    assert (made["rotated_from"], made["name"], made["scopes"]) == (str(key.id), key.name, key.scopes)
    assert bearer(made["secret"]).get(KEYS).status_code == bearer(world.acme.secret).get(KEYS).status_code == 200
    limit.refresh_from_db()
    assert str(limit.key_id) == made["id"]
    again = as_operator.post(f"{KEYS}/{key.id}/rotate", {}, format="json")
    assert (again.status_code, "rotated already" in error_of(again)["message"]) == (409, True)


def test_without_an_overlap_the_old_key_is_dead(world: World, as_acme: APIClient) -> None:
    answer = as_acme.post(f"{KEYS}/{world.acme.key.id}/rotate", {"overlap_seconds": 0}, format="json")
    assert answer.status_code == 201
    assert as_acme.get(KEYS).status_code == 401
    assert bearer(answer.json()["secret"]).get(KEYS).status_code == 200


@pytest.mark.parametrize("asked", [{"overlap_seconds": -1}, {"overlap_seconds": 2592001}, {"overlap": 5}])
def test_an_overlap_that_cannot_be_is_refused(world: World, as_acme: APIClient, asked: dict[str, int]) -> None:
    answer = as_acme.post(f"{KEYS}/{world.acme.key.id}/rotate", asked, format="json")
    assert (answer.status_code, error_of(answer)["param"]) == (400, next(iter(asked)))
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 1


@pytest.mark.parametrize(
    ("own", "change"),
    [
        ({}, {"scopes": ["inference"]}),
        ({"allowed_models": ["small"]}, {"allowed_models": ["large"]}),
        ({"allowed_models": ["small"]}, {"allowed_models": []}),
        ({"allowed_networks": ["127.0.0.0/8"]}, {"allowed_networks": OFFICE}),
        ({"allowed_networks": ["127.0.0.0/8"]}, {"allowed_networks": []}),
    ],
)
def test_a_key_gives_no_key_more_than_it_has(world: World, own: dict[str, Any], change: dict[str, Any]) -> None:
    weak = manager(world, **own)
    before = ApiKey.objects.filter(id=world.acme.key.id).values().get()
    lesser = {"scopes": ["management:read"], "allowed_models": ["small"], "allowed_networks": ["127.0.0.1"]}
    assert weak.patch(f"{KEYS}/{world.acme.key.id}", change, format="json").status_code == 403
    assert weak.post(KEYS, {"name": "x", **lesser, **change}, format="json").status_code == 403
    assert weak.post(f"{KEYS}/{world.acme.key.id}/rotate", {}, format="json").status_code == 403
    assert ApiKey.objects.filter(id=world.acme.key.id).values().get() == before
    assert weak.post(KEYS, {"name": "x", **lesser}, format="json").status_code == 201


def test_a_key_makes_no_key_that_outlives_it_and_does_not_prolong_itself(world: World) -> None:
    ends = timezone.now() + timedelta(hours=1)
    scopes = ("management:read", "management:write")
    own = keys.issue(fixtures.OPERATOR, world.acme.project, name="own", scopes=scopes, expires_at=ends)
    client = bearer(own.secret)
    lesser = {"name": "x", "scopes": ["management:read"]}
    later = (ends + timedelta(seconds=1)).isoformat()
    for refused in ({}, {"expires_at": None}, {"expires_at": later}):
        assert client.post(KEYS, {**lesser, **refused}, format="json").status_code == 403
    assert client.patch(f"{KEYS}/{own.key.id}", {"expires_at": later}, format="json").status_code == 403
    assert client.patch(f"{KEYS}/{own.key.id}", {"expires_at": None}, format="json").status_code == 403
    assert client.post(KEYS, {**lesser, "expires_at": ends.isoformat()}, format="json").status_code == 201
    assert client.post(f"{KEYS}/{own.key.id}/rotate", {}, format="json").status_code == 201


def test_a_key_narrows_and_rotates_itself(world: World) -> None:
    own = keys.issue(fixtures.OPERATOR, world.acme.project, name="own", scopes=("management:read", "management:write"))
    client = bearer(own.secret)
    assert client.patch(f"{KEYS}/{own.key.id}", {"allowed_networks": ["127.0.0.1"]}, format="json").status_code == 200
    rotated = client.post(f"{KEYS}/{own.key.id}/rotate", {}, format="json")
    assert (rotated.status_code, rotated.json()["allowed_networks"]) == (201, ["127.0.0.1/32"])


def test_a_key_opens_the_api_from_its_networks_only(world: World, settings: LazySettings) -> None:
    settings.TRUSTED_PROXIES = networks.parse(["10.0.0.0/8"])
    issued = keys.issue(
        fixtures.OPERATOR, world.acme.project, name="office", scopes=["management:read"], allowed_networks=OFFICE
    )
    client = bearer(issued.secret)
    for address, heard, status in (
        ("192.0.2.7", "", 200),
        ("10.1.1.1", "192.0.2.7", 200),
        ("10.1.1.1", "192.0.2.7, 198.51.100.1", 403),
        ("198.51.100.1", "192.0.2.7", 403),
    ):
        answer = client.get(KEYS, REMOTE_ADDR=address, HTTP_X_FORWARDED_FOR=heard)
        assert answer.status_code == status
    assert error_of(answer)["code"] == "address_not_allowed"
    assert "192.0.2" not in error_of(answer)["message"]


def test_a_use_of_the_api_is_a_use_of_the_key(world: World, as_acme: APIClient, as_operator: APIClient) -> None:
    path = f"{KEYS}/{world.acme.key.id}"
    assert as_operator.get(path).json()["last_used_at"] is None
    first = as_acme.get(path).json()["last_used_at"]
    assert first is not None
    assert as_acme.get(path).json()["last_used_at"] == first


def test_a_stranger_changes_and_rotates_nothing(world: World, as_globex: APIClient) -> None:
    key = world.acme.key
    before = ApiKey.objects.filter(id=key.id).values().get()
    for path in (f"{KEYS}/{key.id}", f"/api/v1/tenants/globex/keys/{key.id}"):
        assert as_globex.patch(path, {"name": "mine"}, format="json").status_code == 404
        assert as_globex.post(f"{path}/rotate", {}, format="json").status_code == 404
    assert ApiKey.objects.filter(id=key.id).values().get() == before
    assert ApiKey.objects.filter(rotated_from=key).count() == 0

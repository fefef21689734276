"""The prediction cache below ``/api/v1/``: policy, settings, purges, scopes of keys, and who may change them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from redis import Redis
from rest_framework.test import APIClient

from caching.store import OVERHEAD_BYTES, STORE, CacheWrite, entry_key
from catalogue import administration
from tenants.ids import TenantId, new_id
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, CachePurge, CacheSetting
from tenants.snapshot import snapshot
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

CACHE = "/api/v1/tenants/acme/cache"
POLICY = {
    "cache_mode": "all",
    "cache_ttl_seconds": 0,
    "cache_entry_bytes": 4096,
    "cache_quota_bytes": 1 << 40,
    "cache_writes_per_minute": 7,
}


def put(client: APIClient, body: dict[str, Any], tenant: str = "acme") -> Any:
    """Set a cache setting."""
    return client.put(f"/api/v1/tenants/{tenant}/cache/settings", body, format="json")


def purge(client: APIClient, body: dict[str, Any], tenant: str = "acme") -> Any:
    """Purge stored answers."""
    return client.post(f"/api/v1/tenants/{tenant}/cache/purge", body, format="json")


def test_a_tenant_reads_the_policy_that_an_operator_sets(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    changed = as_operator.patch("/api/v1/tenants/acme", POLICY, format="json")
    assert changed.status_code == 200
    assert {name: changed.json()["policy"][name] for name in POLICY} == POLICY
    expected = {name.removeprefix("cache_"): value for name, value in POLICY.items()}
    assert as_acme.get(CACHE).json() == {**expected, "scope": "tenant", "stored": {"entries": 0, "bytes": 0}}
    assert as_acme.patch("/api/v1/tenants/acme", {"cache_mode": "off"}, format="json").status_code == 403
    lifted = as_operator.patch("/api/v1/tenants/acme", {"cache_writes_per_minute": None}, format="json")
    assert lifted.json()["policy"]["cache_writes_per_minute"] is None
    for name, value in (("cache_ttl_seconds", 30 * 86400 + 1), ("cache_entry_bytes", (1 << 20) + 1)):
        refused = as_operator.patch("/api/v1/tenants/acme", {name: value}, format="json")
        assert (refused.status_code, error_of(refused)["param"]) == (400, name)


def test_a_key_that_may_change_things_sets_and_removes_its_own_settings(world: World, as_acme: APIClient) -> None:
    of_project = put(as_acme, {"project": "default", "mode": "off"})
    of_key = put(as_acme, {"key": str(world.acme.key.id), "ttl_seconds": 60, "writes_per_minute": 0})
    assert (of_project.status_code, of_key.status_code) == (200, 200)
    assert (of_key.json()["project"], of_key.json()["mode"], of_key.json()["ttl_seconds"]) == (None, "", 60)
    assert as_acme.get(f"{CACHE}/settings").json()["data"] == [of_key.json(), of_project.json()]
    found = snapshot.load().authenticate(world.acme.secret).cache
    assert (found.mode, found.ttl_seconds, found.writes_per_minute) == ("off", 60, 0)
    assert as_acme.delete(f"{CACHE}/settings/{of_project.json()['id']}").status_code == 204
    assert CacheSetting.objects.get().key_id == world.acme.key.id


@pytest.mark.parametrize("kind", ["everything", "model", "key", "request"])
def test_a_purge_is_in_force_at_every_gateway(world: World, as_acme: APIClient, kind: str) -> None:
    source = new_id()
    named = {"everything": True, "model": fixtures.MODEL, "key": str(world.acme.key.id), "request": str(source)}
    answer = purge(as_acme, {kind: named[kind]})
    assert answer.status_code == 201
    assert answer.json()["id"] == str(CachePurge.objects.get().id)
    found = snapshot.load()
    assert found.authenticate(world.acme.secret).cache.purges.covers(source, world.acme.key.id, fixtures.MODEL)
    assert not found.authenticate(world.globex.secret).cache.purges.covers(source, world.acme.key.id, fixtures.MODEL)


def stored(redis: Redis, key: ApiKey, number: int, model: str = fixtures.MODEL) -> CacheWrite:
    """Store an answer to a request of this key, as a gateway does."""
    deposit = CacheWrite(
        tenant_id=TenantId(key.tenant_id),
        name=bytes([number]) * 32,
        value=b"entry",
        ttl_seconds=600,
        quota_bytes=1 << 20,
        writes_per_minute=None,
        key_id=key.id,
        source_id=new_id(),
        model_name=model,
    )
    count, *rest = deposit.arguments()
    redis.eval(STORE, int(count), *rest)
    return deposit


def test_a_purge_deletes_what_redis_keeps_of_this_tenant_alone(
    world: World, as_acme: APIClient, as_globex: APIClient
) -> None:
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        for tenancy, number in ((world.acme, 1), (world.acme, 2), (world.globex, 3)):
            stored(redis, tenancy.key, number, f"model-{number}" if number == 2 else fixtures.MODEL)
        assert as_acme.get(CACHE).json()["stored"]["entries"] == 2
        assert purge(as_acme, {"model": fixtures.MODEL}).status_code == 201
        assert as_acme.get(CACHE).json()["stored"]["entries"] == 1
        assert purge(as_acme, {"everything": True}).status_code == 201
        assert as_acme.get(CACHE).json()["stored"] == {"entries": 0, "bytes": 0}
        assert as_globex.get("/api/v1/tenants/globex/cache").json()["stored"]["entries"] == 1


def test_a_purge_of_a_renamed_model_deletes_what_redis_keeps_under_its_earlier_names(
    world: World, as_acme: APIClient
) -> None:
    administration.rename(fixtures.OPERATOR, fixtures.MODEL, "small")
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        kept = [
            stored(redis, key, number, model)
            for number, (key, model) in enumerate(
                [
                    (world.acme.key, fixtures.MODEL),
                    (world.acme.key, "small"),
                    (world.acme.key, "other"),
                    (world.globex.key, fixtures.MODEL),
                ]
            )
        ]
        assert purge(as_acme, {"model": "small"}).status_code == 201
        assert [redis.exists(entry_key(each.tenant_id, each.name)) for each in kept] == [0, 0, 1, 1]


def test_a_purge_of_a_key_deletes_what_it_and_those_before_it_wrote_and_no_more(
    world: World, as_acme: APIClient
) -> None:
    heir = keys.rotate(fixtures.OPERATOR, world.acme.key, timedelta(days=1)).key
    other = keys.issue(fixtures.OPERATOR, world.acme.project, name="other").key
    with Redis.from_url(settings.REDIS_CACHE_URL) as redis:
        kept = [
            stored(redis, key, number) for number, key in enumerate((world.acme.key, heir, other, world.globex.key))
        ]
        assert purge(as_acme, {"key": str(heir.id)}).status_code == 201
        assert [redis.exists(entry_key(each.tenant_id, each.name)) for each in kept] == [0, 0, 1, 1]
        assert as_acme.get(CACHE).json()["stored"] == {"entries": 1, "bytes": len(b"entry") + OVERHEAD_BYTES}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"everything": False}, 400),
        ({"everything": True, "model": fixtures.MODEL}, 400),
        ({"all": True}, 400),
        ({"request": "00000000-0000-4000-8000-000000000000"}, 400),
        ({"request": new_id().int}, 400),
        ({"key": 5}, 400),
        ({"everything": "yes"}, 400),
        ({"everything": 1}, 400),
        ({"model": "no-such"}, 404),
        ({"key": "00000000-0000-4000-8000-000000000000"}, 404),
    ],
)
def test_what_names_nothing_purges_nothing(world: World, as_acme: APIClient, body: dict[str, Any], status: int) -> None:
    assert purge(as_acme, body).status_code == status
    assert not CachePurge.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "project"),
        ({"mode": "off"}, 400, "project"),
        ({"project": "default"}, 400, "mode"),
        ({"project": "default", "mode": "some"}, 400, "mode"),
        ({"project": "default", "ttl_seconds": 30 * 86400 + 1}, 400, "ttl_seconds"),
        ({"project": "default", "mode": "off", "mod": "off"}, 400, "mod"),
        ({"key": 5, "mode": "off"}, 400, "key"),
        ({"project": "no-such", "mode": "off"}, 404, None),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    world: World, as_acme: APIClient, as_operator: APIClient, body: dict[str, Any], status: int, param: str | None
) -> None:
    for client in (as_acme, as_operator):
        refused = put(client, body)
        assert (refused.status_code, error_of(refused)["param"]) == (status, param)
    assert not CacheSetting.objects.exists()


def test_a_key_that_may_only_look_changes_nothing(world: World, as_acme: APIClient) -> None:
    setting = put(as_acme, {"project": "default", "mode": "off"}).json()["id"]
    reader = bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="r", scopes=["management:read"]).secret)
    assert reader.get(CACHE).status_code == 200
    assert len(reader.get(f"{CACHE}/settings").json()["data"]) == 1
    for answer in (
        put(reader, {"project": "default", "mode": "all"}),
        reader.delete(f"{CACHE}/settings/{setting}"),
        purge(reader, {"everything": True}),
    ):
        assert answer.status_code == 403
    assert CacheSetting.objects.get().mode == "off"
    assert not CachePurge.objects.exists()


def test_a_stranger_finds_no_cache(world: World, as_acme: APIClient, as_globex: APIClient) -> None:
    setting = put(as_acme, {"project": "default", "mode": "off"}).json()["id"]
    before = AuditEntry.objects.count()
    for answer in (
        as_globex.get(CACHE),
        as_globex.get(f"{CACHE}/settings"),
        put(as_globex, {"project": "default", "mode": "all"}),
        put(as_globex, {"key": str(world.acme.key.id), "mode": "all"}, "globex"),
        as_globex.delete(f"{CACHE}/settings/{setting}"),
        as_globex.delete(f"/api/v1/tenants/globex/cache/settings/{setting}"),
        purge(as_globex, {"everything": True}),
        purge(as_globex, {"key": str(world.acme.key.id)}, "globex"),
    ):
        assert answer.status_code == 404, answer.content
    assert AuditEntry.objects.count() == before


def test_a_key_gives_none_a_scope_of_the_cache_that_it_lacks(world: World, as_acme: APIClient) -> None:
    lacking = keys.issue(
        fixtures.OPERATOR, world.acme.project, name="m", scopes=["inference", "management:read", "management:write"]
    )
    path = "/api/v1/tenants/acme/keys"
    for scope in ("cache:read", "cache:write"):
        asked = {"name": "n", "scopes": ["inference", scope]}
        assert bearer(lacking.secret).post(path, asked, format="json").status_code == 403
    keys.change(fixtures.OPERATOR, world.acme.key, scopes=list(keys.SCOPES))
    made = as_acme.post(path, {"name": "n"}, format="json")
    assert made.json()["scopes"] == ["inference", "cache:read", "cache:write"]

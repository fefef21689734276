"""The snapshot and the database agree on every key."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from tenants import policy_epoch, registry
from tenants.caller_limits import CacheTerms
from tenants.errors import KeyRefused
from tenants.keys import key_format, keys
from tenants.models import ApiKey
from tenants.snapshot import snapshot
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer


def test_a_caller_is_who_the_database_says(acme: Customer) -> None:
    registry.set_policy(OPERATOR, acme.tenant, cache_mode="all", cache_ttl_seconds=9)
    caller = snapshot.load().authenticate(acme.secret)
    assert caller == snapshot.Caller(
        tenant_id=acme.tenant.id,  # type: ignore[arg-type]
        project_id=acme.project.id,  # type: ignore[arg-type]
        key_id=acme.key.id,  # type: ignore[arg-type]
        key_public_id=acme.key.public_id,
        scopes=frozenset(keys.DEFAULT_SCOPES),
        allowed_models=frozenset(),
        trust_group="",
        policy=registry.Policy(cache_mode="all", cache_ttl_seconds=9),
        cache=CacheTerms(mode="all", ttl_seconds=9),
    )


def test_two_snapshots_of_one_state_are_equal_and_name_its_epoch(acme: Customer, globex: Customer) -> None:
    assert snapshot.load() == snapshot.load()
    assert snapshot.load().epoch == policy_epoch.current()


def test_each_tenant_gets_its_own_newest_policy(acme: Customer, globex: Customer) -> None:
    for seconds in (5, 6, 7):
        registry.set_policy(OPERATOR, acme.tenant, cache_ttl_seconds=seconds)
    registry.set_policy(
        OPERATOR,
        globex.tenant,
        cache_ttl_seconds=1,
        queue_seconds=2,
        queue_requests=3,
        queue_bytes=4,
        idempotency_bytes_per_hour=5,
        session_headers=["x-thread-id"],
        session_ttl_seconds=6,
        session_affinity="strict",
        priority="low",
        weight=6,
    )
    found = snapshot.load()
    assert found.authenticate(acme.secret).policy == registry.Policy(cache_ttl_seconds=7)
    assert found.authenticate(globex.secret).policy == registry.Policy(
        cache_ttl_seconds=1,
        queue_seconds=2,
        queue_requests=3,
        queue_bytes=4,
        idempotency_bytes_per_hour=5,
        session_headers=("x-thread-id",),
        session_ttl_seconds=6,
        session_affinity="strict",
        priority="low",
        weight=6,
    )


def test_a_snapshot_does_not_change_with_the_database(acme: Customer) -> None:
    before = snapshot.load()
    keys.revoke(OPERATOR, acme.key)
    assert before.authenticate(acme.secret).key_id == acme.key.id
    with pytest.raises(KeyRefused) as refused:
        snapshot.load().authenticate(acme.secret)
    assert refused.value.reason == "revoked"


def test_a_key_that_expires_stops_working_in_a_snapshot_taken_before(acme: Customer) -> None:
    issued = keys.issue(OPERATOR, acme.project, name="short", expires_at=timezone.now() + timedelta(hours=1))
    taken = snapshot.load()
    stored = taken.keys[issued.key.public_id]
    later = dataclasses.replace(
        taken, keys={issued.key.public_id: msgspec.structs.replace(stored, expires_at=timezone.now().timestamp() - 1)}
    )
    assert taken.authenticate(issued.secret).key_id == issued.key.id
    with pytest.raises(KeyRefused) as refused:
        later.authenticate(issued.secret)
    assert refused.value.reason == "expired"


@pytest.mark.parametrize(("days", "reason"), [(30, "revoked"), (32, "unknown")])
def test_a_key_that_was_revoked_long_ago_is_unknown(acme: Customer, days: int, reason: str) -> None:
    keys.revoke(OPERATOR, acme.key)
    ApiKey.objects.update(revoked_at=timezone.now() - timedelta(days=days))
    with pytest.raises(KeyRefused) as refused:
        snapshot.load().authenticate(acme.secret)
    assert refused.value.reason == reason


def test_a_key_that_was_proved_proves_no_other_text_and_no_other_snapshot(acme: Customer) -> None:
    taken = snapshot.load()
    assert taken.authenticate(acme.secret) is taken.authenticate(acme.secret)
    forged = dataclasses.replace(key_format.generate("hk"), public_id=acme.key.public_id).text()
    for text in (forged, acme.secret[:-1], ""):
        with pytest.raises(KeyRefused):
            taken.authenticate(text)
    with pytest.raises(KeyRefused) as refused:
        dataclasses.replace(taken, keys={}).authenticate(acme.secret)
    assert refused.value.reason == "unknown"


def test_a_caller_proved_earlier_is_found_by_public_id_while_its_key_lives(acme: Customer) -> None:
    taken = snapshot.load()
    assert taken.caller(acme.key.public_id) == taken.authenticate(acme.secret)
    with pytest.raises(KeyRefused) as unknown:
        taken.caller("nobody")
    keys.revoke(OPERATOR, acme.key)
    with pytest.raises(KeyRefused) as revoked:
        snapshot.load().caller(acme.key.public_id)
    assert (unknown.value.reason, revoked.value.reason) == ("unknown", "revoked")


def test_a_snapshot_knows_an_id_whatever_its_secret(acme: Customer) -> None:
    taken = snapshot.load()
    forged = key_format.Credential(prefix="hk", public_id=acme.key.public_id, secret="A" * 43)
    assert [taken.knows(text) for text in (acme.secret, forged.text(), key_format.generate("hk").text())] == [
        True,
        True,
        False,
    ]


def test_a_page_of_keys_and_tenants_takes_eleven_queries_however_many(
    acme: Customer, django_assert_num_queries: object
) -> None:
    for number in range(5):
        customers.create(f"tenant-{number}")
    with django_assert_num_queries(11):  # type: ignore[operator]
        assert len(snapshot.load().keys) == 6

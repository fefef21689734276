"""Prediction-cache settings and purges: their targets, their precedence and their audit entries."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from tenants import policy_epoch, registry
from tenants.caller_limits import LONGEST_TTL_SECONDS, PURGES_HOLD_SECONDS, CacheTerms
from tenants.errors import BadName, NotAllowed
from tenants.ids import first_id_at, new_id
from tenants.keys import keys
from tenants.models import AuditEntry, CachePurge, CacheSetting, TenantPolicy
from tenants.policy import cache_settings, purges
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.policy_target import PolicyTarget
from tenants.policy.purges import PurgeTarget
from tenants.snapshot import snapshot
from tests.tenants.customers import OPERATOR, Customer


def terms(customer: Customer, secret: str = "") -> CacheTerms:
    """Return the current terms of the customer's key, or of another key, as a gateway reads them."""
    return snapshot.load().authenticate(secret or customer.secret).cache


def covered(customer: Customer, source_id: UUID, model_name: str = "demo") -> bool:
    """Return whether a response stored by the customer's key is purged."""
    return terms(customer).purges.covers(source_id, customer.key.id, model_name)


def test_a_keys_setting_comes_before_its_projects_and_that_before_the_policy(acme: Customer, globex: Customer) -> None:
    registry.set_policy(OPERATOR, acme.tenant, cache_mode="all", cache_ttl_seconds=9, cache_writes_per_minute=5)
    of_project, of_key = (
        PolicyTarget(tenant=acme.tenant, project=acme.project),
        PolicyTarget(tenant=acme.tenant, key=acme.key),
    )
    cache_settings.set_setting(OPERATOR, of_project, CacheOverrides(mode="off", ttl_seconds=0))
    assert (terms(acme).mode, terms(acme).ttl_seconds, terms(acme).writes_per_minute) == ("off", 0, 5)
    cache_settings.set_setting(OPERATOR, of_key, CacheOverrides(mode="deterministic", writes_per_minute=0))
    assert (terms(acme).mode, terms(acme).ttl_seconds, terms(acme).writes_per_minute) == ("deterministic", 0, 0)
    cache_settings.remove(OPERATOR, CacheSetting.objects.get(key=acme.key))
    assert terms(acme).mode == "off"
    assert terms(globex) == CacheTerms()


def test_a_policy_of_before_there_was_a_longest_time_to_live_lets_no_answer_outlive_its_purge(acme: Customer) -> None:
    TenantPolicy.objects.create(tenant=acme.tenant, version=2, cache_ttl_seconds=2**31 - 1)
    assert terms(acme).ttl_seconds == LONGEST_TTL_SECONDS
    registry.set_policy(OPERATOR, acme.tenant, cache_mode="all")
    assert (terms(acme).mode, terms(acme).ttl_seconds) == ("all", LONGEST_TTL_SECONDS)


def test_a_rotated_keys_setting_goes_to_its_successor_and_holds_for_both(acme: Customer) -> None:
    cache_settings.set_setting(OPERATOR, PolicyTarget(tenant=acme.tenant, key=acme.key), CacheOverrides(mode="off"))
    issued = keys.rotate(OPERATOR, acme.key, timedelta(days=1))
    assert CacheSetting.objects.get().key_id == issued.key.id
    assert (terms(acme).mode, terms(acme, issued.secret).mode) == ("off", "off")


def test_a_setting_is_audited_and_told_once(acme: Customer) -> None:
    whom, before = PolicyTarget(tenant=acme.tenant, project=acme.project), policy_epoch.current()
    for _ in range(2):
        made = cache_settings.set_setting(OPERATOR, whom, CacheOverrides(ttl_seconds=60))
    assert policy_epoch.current() == before + 1
    entry = AuditEntry.objects.get(action="cache_setting.set")
    who = {"project": "default", "key": None, "model": None}
    assert (entry.before, entry.after) == (None, {**who, "mode": "", "ttl_seconds": 60, "writes_per_minute": None})
    cache_settings.remove(OPERATOR, made)
    cache_settings.remove(OPERATOR, made)
    assert policy_epoch.current() == before + 2
    assert AuditEntry.objects.get(action="cache_setting.removed").before == entry.after


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (CacheOverrides(), "cache setting"),
        (CacheOverrides(mode="some"), "mode"),
        (CacheOverrides(ttl_seconds=30 * 86400 + 1), "ttl_seconds"),
        (CacheOverrides(writes_per_minute=-1), "writes_per_minute"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(acme: Customer, asked: CacheOverrides, kind: str) -> None:
    with pytest.raises(BadName) as refused:
        cache_settings.set_setting(OPERATOR, PolicyTarget(tenant=acme.tenant, project=acme.project), asked)
    assert refused.value.kind == kind
    with pytest.raises(BadName):
        cache_settings.set_setting(OPERATOR, PolicyTarget(tenant=acme.tenant), CacheOverrides(mode="off"))
    assert not CacheSetting.objects.exists()


def test_a_key_reads_and_writes_the_cache_as_its_scopes_say(acme: Customer) -> None:
    reader = keys.issue(OPERATOR, acme.project, name="reader", scopes=["inference", "cache:read"])
    found = terms(acme, reader.secret)
    assert (found.may_read, found.may_write) == (True, False)


def test_a_purge_covers_what_was_asked_before_it_and_nothing_of_a_stranger(acme: Customer, globex: Customer) -> None:
    source = new_id()
    purges.purge(OPERATOR, acme.tenant, PurgeTarget())
    assert covered(acme, source)
    assert not covered(globex, source)
    assert not covered(acme, first_id_at(timezone.now() + timedelta(minutes=1)))


def test_a_purge_covers_a_request_of_a_gateway_whose_clock_is_ahead(acme: Customer) -> None:
    source = UUID(int=new_id().int + (900 << 80))
    purges.purge(OPERATOR, acme.tenant, PurgeTarget())
    assert covered(acme, source)


def test_a_purge_of_a_model_a_key_or_a_request_covers_no_other(acme: Customer) -> None:
    other = keys.issue(OPERATOR, acme.project, name="other").key
    source, neighbour = new_id(), new_id()
    purges.purge(OPERATOR, acme.tenant, PurgeTarget(request_id=source))
    assert (covered(acme, source), covered(acme, neighbour)) == (True, False)
    purges.purge(OPERATOR, acme.tenant, PurgeTarget(model_name="demo"))
    assert (covered(acme, neighbour), covered(acme, neighbour, "other")) == (True, False)
    purges.purge(OPERATOR, acme.tenant, PurgeTarget(key=acme.key))
    assert covered(acme, neighbour, "other")
    assert not terms(acme).purges.covers(neighbour, other.id, "other")


def test_a_purge_of_a_key_covers_what_those_before_it_stored(acme: Customer) -> None:
    successor = keys.rotate(OPERATOR, acme.key, timedelta(0)).key
    source = new_id()
    issued = keys.issue(OPERATOR, acme.project, name="other")
    purges.purge(OPERATOR, acme.tenant, PurgeTarget(key=successor))
    found = terms(acme, issued.secret).purges
    assert [found.covers(source, key, "demo") for key in (acme.key.id, successor.id, issued.key.id)] == [
        True,
        True,
        False,
    ]


def test_a_purge_that_is_committed_late_takes_nothing_back(acme: Customer) -> None:
    source = new_id()
    late = UUID(int=source.int - (60_000 << 80))
    newest = purges.purge(OPERATOR, acme.tenant, PurgeTarget()).id
    CachePurge.objects.create(id=late, tenant=acme.tenant)
    assert terms(acme).purges.everything == newest
    assert covered(acme, source)


def test_a_purge_that_no_answer_is_old_enough_for_is_not_read(acme: Customer) -> None:
    old = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS + 60))
    CachePurge.objects.create(id=old, tenant=acme.tenant)
    assert terms(acme).purges.everything is None


def test_purges_of_requests_are_bounded_until_everything_is_purged(
    acme: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "MOST_REQUESTS", 2)
    for _ in range(2):
        purges.purge(OPERATOR, acme.tenant, PurgeTarget(request_id=new_id()))
    with pytest.raises(NotAllowed):
        purges.purge(OPERATOR, acme.tenant, PurgeTarget(request_id=new_id()))
    purges.purge(OPERATOR, acme.tenant, PurgeTarget())
    assert terms(acme).purges.requests == {}
    purges.purge(OPERATOR, acme.tenant, PurgeTarget(request_id=new_id()))


def test_a_purge_is_audited_and_one_of_two_things_is_refused(acme: Customer) -> None:
    before = policy_epoch.current()
    made = purges.purge(OPERATOR, acme.tenant, PurgeTarget(model_name="demo"))
    entry = AuditEntry.objects.get(action="cache.purged")
    assert (entry.object_id, entry.after) == (str(made.id), {"model": "demo"})
    assert policy_epoch.current() == before + 1
    for wrong in (PurgeTarget(model_name="demo", key=acme.key), PurgeTarget(request_id=uuid4())):
        with pytest.raises(BadName):
            purges.purge(OPERATOR, acme.tenant, wrong)
    assert CachePurge.objects.count() == 1
    purges.purge(OPERATOR, acme.tenant, PurgeTarget())
    assert AuditEntry.objects.order_by("-id")[0].after == {"everything": True}

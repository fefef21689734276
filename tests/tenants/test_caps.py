"""One tenant has a bounded number of keys, projects, limits, budgets and cache settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from tenants import caps, registry
from tenants.errors import NotAllowed
from tenants.keys import keys
from tenants.models import ApiKey
from tenants.policy import budgets, cache_settings, limits, policy_target
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db


def _key(acme: Customer) -> object:
    return keys.issue(OPERATOR, acme.project, name="x")


def _rotated(acme: Customer) -> object:
    return keys.rotate(OPERATOR, acme.key, timedelta(days=1))


def _project(acme: Customer) -> object:
    return registry.create_project(OPERATOR, acme.tenant, slug="x", name="x")


def _limit(acme: Customer) -> object:
    target = policy_target.target(acme.tenant, project="default")
    return limits.set_limit(OPERATOR, target, LimitValues(requests_per_minute=1))


def _budget(acme: Customer) -> object:
    target = policy_target.target(acme.tenant, project="default")
    return budgets.create(OPERATOR, target, BudgetTerms(period="month", limit_pico=1))


def _setting(acme: Customer) -> object:
    target = policy_target.target(acme.tenant, project="default")
    return cache_settings.set_setting(OPERATOR, target, CacheOverrides(mode="off"))


@pytest.mark.parametrize(
    ("cap", "most", "make", "what"),
    [
        ("LIVE_KEYS", 1, _key, "1 live keys"),
        ("LIVE_KEYS", 1, _rotated, "1 live keys"),
        ("KEYS_A_DAY", 1, _key, "1 keys created within a day"),
        ("PROJECTS", 1, _project, "1 projects"),
        ("RULES", 0, _limit, "0 limits"),
        ("RULES", 0, _budget, "0 budgets"),
        ("RULES", 0, _setting, "0 cache settings"),
    ],
)
def test_one_more_than_it_may_have_is_refused(
    acme: Customer,
    globex: Customer,
    monkeypatch: pytest.MonkeyPatch,
    cap: str,
    most: int,
    make: Callable[[Customer], object],
    what: str,
) -> None:
    monkeypatch.setattr(caps, cap, most)
    with pytest.raises(NotAllowed) as refused:
        make(acme)
    assert (refused.value.name, refused.value.state) == ("acme", f"at its limit of {what}")
    monkeypatch.setattr(caps, cap, most + 1)
    make(acme)
    make(globex)


def test_revoked_and_expired_keys_and_those_of_yesterday_make_room(
    acme: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caps, "LIVE_KEYS", 1)
    keys.revoke(OPERATOR, acme.key)
    second = keys.issue(OPERATOR, acme.project, name="second", expires_at=timezone.now() + timedelta(hours=1))
    ApiKey.objects.filter(id=second.key.id).update(expires_at=timezone.now())
    keys.issue(OPERATOR, acme.project, name="third")
    ApiKey.objects.update(created_at=timezone.now() - timedelta(days=2), revoked_at=timezone.now())
    monkeypatch.setattr(caps, "KEYS_A_DAY", 1)
    fourth = keys.issue(OPERATOR, acme.project, name="fourth")
    assert list(ApiKey.objects.filter(revoked_at=None)) == [fourth.key]

"""A gateway reads what has changed, and then knows what it would know if it had read everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tenants import policy_epoch, registry
from tenants.errors import KeyRefused, NotAllowed
from tenants.keys import keys
from tenants.models import ApiKey, Budget, CacheSetting, Limit, PolicyChange, PolicyEpoch, Project, Tenant
from tenants.policy import budgets, cache_settings, limits, purges
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.policy.purges import PurgeTarget
from tenants.snapshot import snapshot, snapshot_rows, snapshot_sweep
from tenants.snapshot.snapshot import Snapshot
from tests.tenants import bulk_keys, customers
from tests.tenants.customers import OPERATOR, Customer


@dataclass(slots=True)
class Read:
    """What was read from the database."""

    queries: int = 0
    rows: int = 0


@contextmanager
def counted() -> Iterator[Read]:
    """Count queries and the rows that they return."""
    read = Read()

    def count(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        result = execute(sql, params, many, context)
        read.queries += 1
        read.rows += context["cursor"].rowcount
        return result

    with connection.execute_wrapper(count):
        yield read


def refreshed(before: Snapshot) -> Snapshot:
    """Return the snapshot that a gateway has after its next poll."""
    return before.refreshed(policy_epoch.changes_since(before.epoch))


def reason(taken: Snapshot, secret: str) -> str:
    """Return why a key is refused; an empty text when it is not."""
    try:
        taken.authenticate(secret)
    except KeyRefused as refused:
        return refused.reason
    return ""


MANY = [5_000, pytest.param(100_000, marks=pytest.mark.long)]


@pytest.mark.parametrize("number", MANY)
def test_a_revocation_reads_one_key_however_many_there_are(acme: Customer, globex: Customer, number: int) -> None:
    bulk_keys.insert(acme, number)
    began = time.perf_counter()
    before = snapshot.load()
    loaded = time.perf_counter() - began
    assert len(before.keys) == number + 2
    keys.revoke(OPERATOR, acme.key)
    with counted() as read:
        began = time.perf_counter()
        after = refreshed(before)
    print(f"{number} keys: all read in {loaded:.2f} s, a change in {(time.perf_counter() - began) * 1e3:.1f} ms")
    assert read == Read(queries=4, rows=4)  # the epoch, its change, the key, the epoch
    assert [reason(each, acme.secret) for each in (before, after)] == ["", "revoked"]
    assert after == snapshot.load()


@pytest.mark.parametrize("number", MANY)
def test_a_change_of_a_tenant_reads_its_rules_and_none_of_its_keys(acme: Customer, number: int) -> None:
    bulk_keys.insert(acme, number)
    for other in range(5):
        customers.create(f"tenant-{other}")
    before = snapshot.load()
    registry.suspend(OPERATOR, acme.tenant)
    with counted() as read:
        after = refreshed(before)
    assert read == Read(queries=10, rows=5)  # the epoch twice, its change, the tenant, its policy; no bounds
    assert reason(after, acme.secret) == "tenant_suspended"
    assert after == snapshot.load()


def test_a_tenants_change_makes_its_own_callers_anew_and_no_others(acme: Customer, globex: Customer) -> None:
    before = snapshot.load()
    callers = [before.authenticate(each.secret) for each in (acme, globex)]
    registry.set_policy(OPERATOR, acme.tenant, cache_ttl_seconds=7)
    after = refreshed(before)
    assert after.authenticate(acme.secret).policy.cache_ttl_seconds == 7
    assert after.authenticate(globex.secret) is callers[1]
    assert before.authenticate(acme.secret) == callers[0]


def test_the_bounds_of_a_rotated_key_follow_to_both_keys(acme: Customer) -> None:
    target = PolicyTarget(tenant=acme.tenant, key=acme.key)
    limits.set_limit(OPERATOR, target, LimitValues(requests_per_minute=3))
    taken = snapshot.load()
    newest, secrets = acme.key, [acme.secret]
    for _ in range(3):
        issued = keys.rotate(OPERATOR, newest, timedelta(days=1))
        newest, secrets = issued.key, [*secrets, issued.secret]
        taken = refreshed(taken)
        assert [len(taken.authenticate(secret).limits) for secret in secrets] == [1] * len(secrets)
    assert taken == snapshot.load()


def test_a_bound_that_was_set_while_its_key_was_rotated_applies_to_both_keys(acme: Customer) -> None:
    taken = snapshot.load()
    middle = keys.rotate(OPERATOR, acme.key, timedelta(days=1))
    newest = keys.rotate(OPERATOR, middle.key, timedelta(days=1))
    limits.set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant, key=acme.key), LimitValues(requests_per_minute=3))
    taken = refreshed(taken)
    for secret in (acme.secret, middle.secret, newest.secret):
        assert [line.requests_per_minute for line in taken.authenticate(secret).limits] == [3]


def test_a_bound_follows_a_rotation_that_ends_between_two_reads(acme: Customer) -> None:
    limits.set_limit(OPERATOR, PolicyTarget(tenant=acme.tenant, key=acme.key), LimitValues(requests_per_minute=3))
    taken = snapshot.load()
    registry.set_policy(OPERATOR, acme.tenant, cache_ttl_seconds=7)
    seen = policy_epoch.changes_since(taken.epoch)
    issued = keys.rotate(OPERATOR, acme.key, timedelta(days=1))
    after = taken.refreshed(seen)
    for secret in (acme.secret, issued.secret):
        assert [line.requests_per_minute for line in after.authenticate(secret).limits] == [3]
    assert after == snapshot.load()


@pytest.mark.parametrize(
    "miss",
    [
        lambda: PolicyEpoch.objects.update(value=1_000_000),
        lambda: PolicyChange.objects.all().delete(),
        lambda: PolicyEpoch.objects.update(value=0),
        policy_epoch.bump,
    ],
    ids=["an older process", "removed changes", "a restored database", "a change without a name"],
)
def test_if_any_change_is_not_recorded_everything_is_read(acme: Customer, miss: Callable[[], object]) -> None:
    before = snapshot.load()
    ApiKey.objects.filter(id=acme.key.id).update(revoked_at=timezone.now())  # unannounced
    registry.create_project(OPERATOR, acme.tenant, slug="other", name="Other")
    miss()
    assert not policy_epoch.changes_since(before.epoch).complete
    assert reason(refreshed(before), acme.secret) == "revoked"
    assert refreshed(before) == snapshot.load()


def test_changes_are_kept_for_so_many_epochs(acme: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_epoch, "KEPT_EPOCHS", 3)
    for _ in range(5):
        policy_epoch.bump(keys=[acme.key.id])
    now = policy_epoch.current()
    assert set(PolicyChange.objects.values_list("epoch", flat=True)) == {now, now - 1, now - 2}
    assert [policy_epoch.changes_since(now - behind).complete for behind in (3, 4)] == [True, False]


def test_a_sweep_finds_what_nobody_announced(acme: Customer, globex: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_sweep, "REST_SECONDS", 0.0)
    monkeypatch.setattr(snapshot_rows, "KEYS_PER_PAGE", 2)
    bulk_keys.insert(acme, 5)
    taken = snapshot.load()
    long_ago = timezone.now() - timedelta(days=32)
    gone = keys.issue(OPERATOR, acme.project, name="gone")
    taken = refreshed(taken)
    ApiKey.objects.filter(id=acme.key.id).update(revoked_at=timezone.now())
    ApiKey.objects.filter(id=gone.key.id).update(revoked_at=long_ago)
    Tenant.objects.filter(id=globex.tenant.id).update(state=Tenant.State.SUSPENDED)
    sweep, steps = snapshot_sweep.SnapshotSweep(), 0
    assert refreshed(taken) is taken
    while taken != snapshot.load():
        with counted() as read:
            taken = sweep.step(taken)
        steps += 1
        assert read.rows <= 6, "a step reads no more than a page"
        assert steps < 20
    assert [reason(taken, each.secret) for each in (acme, globex)] == ["revoked", "tenant_suspended"]
    assert reason(taken, gone.secret) == "unknown"


@dataclass(slots=True)
class _World:
    """Random changes by Hearth's own functions."""

    dice: random.Random
    issued: list[keys.IssuedKey] = field(default_factory=list)

    def change(self) -> None:
        """Make one change, possibly refused."""
        tenant = self.dice.choice(list(Tenant.objects.order_by("id")))
        project = self.dice.choice(list(Project.objects.filter(tenant=tenant).order_by("id")))
        kind = self.dice.choice((self.issue, self.end, self.bound, self.rule, self.unbind))
        with suppress(NotAllowed):
            kind(tenant, project)

    def issue(self, tenant: Tenant, project: Project) -> None:
        """Issue or rotate a key."""
        own = [each.key for each in self.issued if each.key.tenant_id == tenant.id]
        if own and self.dice.random() < 0.5:
            self.issued.append(keys.rotate(OPERATOR, self.dice.choice(own), timedelta(days=self.dice.randint(0, 2))))
        else:
            self.issued.append(keys.issue(OPERATOR, project, name="k"))

    def end(self, tenant: Tenant, project: Project) -> None:
        """Revoke or narrow a key, archive a project or restore it, suspend a tenant or resume it."""
        if self.issued and self.dice.random() < 0.5:
            key = self.dice.choice(self.issued).key
            if self.dice.random() < 0.5:
                keys.revoke(OPERATOR, key)
            else:
                keys.change(OPERATOR, key, scopes=["inference"], allowed_networks=["10.0.0.0/8"])
        elif self.dice.random() < 0.5:
            registry.set_project_archived(OPERATOR, project, self.dice.random() < 0.5)
        else:
            self.dice.choice((registry.suspend, registry.resume))(OPERATOR, tenant)

    def bound(self, tenant: Tenant, project: Project) -> None:
        """Set a limit, a budget or a cache setting."""
        own = [each.key for each in self.issued if each.key.tenant_id == tenant.id]
        targets = [PolicyTarget(tenant=tenant, project=project), *[PolicyTarget(tenant=tenant, key=key) for key in own]]
        target, number = self.dice.choice(targets), self.dice.randint(1, 9)
        which = self.dice.randint(0, 2)
        if which == 0:
            limits.set_limit(OPERATOR, target, LimitValues(requests_per_minute=number))
        elif which == 1:
            budgets.put(OPERATOR, target, BudgetTerms(period="day", limit_pico=number))
        else:
            cache_settings.set_setting(OPERATOR, target, CacheOverrides(ttl_seconds=number))

    def unbind(self, tenant: Tenant, project: Project) -> None:
        """Remove a limit, a budget or a cache setting."""
        for limit in Limit.objects.filter(tenant=tenant)[:1]:
            limits.remove(OPERATOR, limit)
        for budget in Budget.objects.filter(tenant=tenant, archived_at=None)[:1]:
            budgets.archive(OPERATOR, budget)
        for setting in CacheSetting.objects.filter(tenant=tenant)[:1]:
            cache_settings.remove(OPERATOR, setting)

    def rule(self, tenant: Tenant, project: Project) -> None:
        """Change a tenant's policy, purge, or create a tenant or a project."""
        number = self.dice.randint(0, 3)
        if number == 0:
            registry.set_policy(OPERATOR, tenant, cache_ttl_seconds=self.dice.randint(1, 9))
        elif number == 1:
            purges.purge(OPERATOR, tenant, PurgeTarget(model_name=self.dice.choice(["", "demo"])))
        elif number == 2:
            registry.create_project(OPERATOR, tenant, slug=f"p-{Project.objects.count()}", name="P")
        else:
            registry.create_tenant(OPERATOR, slug=f"t-{Tenant.objects.count()}", name="T")


@pytest.mark.parametrize("seed", range(2))
def test_whatever_changes_the_parts_that_are_read_make_up_the_whole(
    acme: Customer, globex: Customer, seed: int
) -> None:
    world, taken = _World(random.Random(seed)), snapshot.load()
    for _ in range(25):
        for _ in range(world.dice.randint(1, 3)):
            world.change()
        taken, whole = refreshed(taken), snapshot.load()
        assert taken == whole
        for each in world.issued:
            assert reason(taken, each.secret) == reason(whole, each.secret)
            with suppress(KeyRefused):
                assert taken.authenticate(each.secret) == whole.authenticate(each.secret)

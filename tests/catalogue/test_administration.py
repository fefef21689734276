"""Renaming, aliasing, sharing and archiving a model, and what tenants see then."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from catalogue import administration, registry
from catalogue.models import Model
from catalogue.registry import Description
from tenants import policy_epoch
from tenants.audit import Actor
from tenants.caller_limits import PURGES_HOLD_SECONDS
from tenants.database.rls import as_tenant
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.ids import TenantId, first_id_at, new_id
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, CachePurge, Limit, Project, Tenant
from tenants.policy import budgets, limits, purges
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tenants.policy.purges import PurgeTarget
from tenants.registry import create_tenant
from tenants.snapshot import snapshot

OPERATOR = Actor(kind="user", name="ada")
TINY = Description(
    name="tiny", source="/models/tiny", engine="vllm", context_length_tokens=2048, weights_digest="d1", public=True
)


@pytest.fixture
def owner(db: None) -> Tenant:
    """The platform, which owns the model ``tiny``."""
    owner = create_tenant(OPERATOR, slug="platform", name="Platform")
    registry.register(OPERATOR, owner, TINY)
    return owner


@pytest.fixture
def acme(owner: Tenant) -> Tenant:
    """A tenant with which a model is shared."""
    return create_tenant(OPERATOR, slug="acme", name="Acme")


@pytest.fixture
def globex(owner: Tenant) -> Tenant:
    """The stranger."""
    return create_tenant(OPERATOR, slug="globex", name="Globex")


def names(tenant: Tenant) -> list[str]:
    """Return the models that a tenant may call."""
    return [model.name for model in registry.load().visible(TenantId(tenant.id))]


def name_of(tenant: Tenant, called: str) -> str | None:
    """Return the name of the model that a tenant calls by this name."""
    found = registry.load().find(TenantId(tenant.id), called)
    return found.name if found else None


def test_a_private_model_is_seen_by_the_chosen_tenants_and_no_other(
    owner: Tenant, acme: Tenant, globex: Tenant
) -> None:
    administration.set_visibility(OPERATOR, "tiny", "private", ["acme"])
    assert (names(owner), names(acme), names(globex)) == (["tiny"], ["tiny"], [])
    assert (name_of(acme, "tiny"), name_of(globex, "tiny")) == ("tiny", None)
    for tenant, seen in ((acme, 1), (globex, 0)):
        with as_tenant(TenantId(tenant.id)):
            assert Model.objects.count() == seen
    entry = AuditEntry.objects.get(action="model.visibility_set")
    assert entry.after == {"model": "tiny", "visibility": "private", "tenants": ["acme"]}
    administration.set_visibility(OPERATOR, "tiny", "public")
    assert names(globex) == ["tiny"]


def test_a_change_that_is_not_valid_changes_nothing(owner: Tenant, acme: Tenant) -> None:
    before = policy_epoch.current()
    with pytest.raises(NotFound):
        administration.set_visibility(OPERATOR, "tiny", "private", ["nobody"])
    with pytest.raises(BadName):
        administration.set_visibility(OPERATOR, "tiny", "public", ["acme"])
    with pytest.raises(BadName):
        administration.set_visibility(OPERATOR, "tiny", "secret")
    with pytest.raises(BadName):
        administration.set_aliases(OPERATOR, "tiny", ["Bad Name"])
    with pytest.raises(BadName):
        administration.rename(OPERATOR, "tiny", "-")
    with pytest.raises(NotFound):
        administration.archive(OPERATOR, "nothing")
    assert policy_epoch.current() == before


def test_an_archived_model_is_not_listed_and_a_restored_one_is(owner: Tenant, acme: Tenant) -> None:
    administration.set_aliases(OPERATOR, "tiny", ["small"])
    administration.archive(OPERATOR, "tiny")
    assert (names(acme), name_of(acme, "tiny"), name_of(acme, "small")) == ([], None, None)
    count = AuditEntry.objects.count()
    administration.archive(OPERATOR, "tiny")
    assert AuditEntry.objects.count() == count
    administration.restore(OPERATOR, "small")
    assert (names(acme), name_of(acme, "small")) == (["tiny"], "tiny")


def test_aliases_are_exactly_those_given_and_never_another_models_name(owner: Tenant, acme: Tenant) -> None:
    registry.register(OPERATOR, owner, replace(TINY, name="other"))
    administration.set_aliases(OPERATOR, "tiny", ["small", "org/Tiny-7B.v2"])
    administration.set_aliases(OPERATOR, "tiny", ["small"])
    assert (name_of(acme, "small"), name_of(acme, "org/Tiny-7B.v2")) == ("tiny", None)
    for taken in ("other", "tiny"):
        with pytest.raises(AlreadyExists):
            administration.set_aliases(OPERATOR, "tiny", [taken])
    with pytest.raises(AlreadyExists):
        administration.set_aliases(OPERATOR, "other", ["small"])


def test_a_renamed_model_answers_to_both_names_and_keys_and_limits_follow(
    owner: Tenant, acme: Tenant, globex: Tenant
) -> None:
    project = Project.objects.get(tenant=acme)
    issued = keys.issue(OPERATOR, project, name="one", scopes=keys.SCOPES, allowed_models=("tiny", "else"))
    limits.set_limit(OPERATOR, PolicyTarget(tenant=acme, model_name="tiny"), LimitValues(requests_per_minute=5))
    stranger = keys.issue(OPERATOR, Project.objects.get(tenant=globex), name="one")
    before = snapshot.load()
    administration.rename(OPERATOR, "tiny", "small")
    assert (names(acme), name_of(acme, "tiny"), name_of(acme, "small")) == (["small"], "small", "small")
    changes = policy_epoch.changes_since(before.epoch)
    assert (changes.complete, changes.models) == (True, True)
    assert set(changes.tenants) == {acme.id}
    assert set(changes.keys) == {issued.key.id}
    after = before.refreshed(changes)
    assert after == snapshot.load()
    assert after.keys[stranger.key.public_id] is before.keys[stranger.key.public_id]
    assert ApiKey.objects.get(id=issued.key.id).allowed_models == ["small", "else"]
    assert Limit.objects.get().model_name == "small"
    administration.rename(OPERATOR, "small", "tiny")
    assert (names(acme), name_of(acme, "small")) == (["tiny"], "tiny")


def test_a_purge_by_the_old_name_holds_after_each_renaming_and_for_its_tenant_alone(
    owner: Tenant, acme: Tenant, globex: Tenant
) -> None:
    secrets = {
        tenant: keys.issue(OPERATOR, Project.objects.get(tenant=tenant), name="one").secret for tenant in (acme, globex)
    }
    source, key_id = new_id(), uuid4()
    purges.purge(OPERATOR, acme, PurgeTarget(model_name="tiny"))
    later = first_id_at(timezone.now() + timedelta(minutes=1))
    for old, new in (("tiny", "small"), ("small", "tiny"), ("tiny", "other")):
        administration.rename(OPERATOR, old, new)
        of_acme, of_globex = (snapshot.load().authenticate(secrets[each]).cache.purges for each in (acme, globex))
        assert of_acme.covers(source, key_id, new)
        assert not of_acme.covers(later, key_id, new)
        assert not of_globex.covers(source, key_id, new)


def test_a_purge_by_a_name_that_is_no_longer_the_models_takes_its_present_name(owner: Tenant, acme: Tenant) -> None:
    administration.rename(OPERATOR, "tiny", "small")
    assert administration.purge(OPERATOR, acme, PurgeTarget(model_name="tiny")).model_name == "small"
    with pytest.raises(NotFound):
        administration.purge(OPERATOR, acme, PurgeTarget(model_name="nothing"))


def test_a_purge_that_no_answer_is_old_enough_for_is_not_renamed(owner: Tenant, acme: Tenant) -> None:
    old = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS + 60))
    CachePurge.objects.create(id=old, tenant=acme, model_name="tiny")
    administration.rename(OPERATOR, "tiny", "small")
    assert CachePurge.objects.get().id == old


def test_a_budget_follows_a_new_name_until_another_model_has_the_old_one(owner: Tenant, acme: Tenant) -> None:
    terms = BudgetTerms(period="month", limit_pico=10**12)
    made = budgets.create(OPERATOR, PolicyTarget(tenant=acme, model_name="tiny"), terms)
    ended = budgets.create(OPERATOR, PolicyTarget(tenant=acme, model_name="tiny"), replace(terms, period="day"))
    budgets.archive(OPERATOR, ended)
    epoch = policy_epoch.current()
    administration.rename(OPERATOR, "tiny", "small")
    assert acme.id in policy_epoch.changes_since(epoch).tenants
    made.refresh_from_db()
    ended.refresh_from_db()
    assert (made.model_name, made.earlier_names, ended.model_name) == ("small", ["tiny"], "tiny")
    administration.set_aliases(OPERATOR, "small", [])
    registry.register(OPERATOR, owner, replace(TINY, weights_digest="d2"))
    made.refresh_from_db()
    assert (made.model_name, made.earlier_names) == ("small", [])


def test_a_name_that_is_taken_or_has_a_budget_is_not_given(owner: Tenant, acme: Tenant) -> None:
    registry.register(OPERATOR, owner, replace(TINY, name="other"))
    with pytest.raises(AlreadyExists):
        administration.rename(OPERATOR, "tiny", "other")
    terms = BudgetTerms(period="month", limit_pico=10**12)
    budgets.create(OPERATOR, PolicyTarget(tenant=acme, model_name="small"), terms)
    with pytest.raises(NotAllowed) as refused:
        administration.rename(OPERATOR, "tiny", "small")
    assert refused.value.state == "named by a budget of tenant 'acme': archive that first"
    assert names(acme) == ["other", "tiny"]


def test_a_retirement_is_set_moved_and_taken_back(owner: Tenant) -> None:
    registry.register(OPERATOR, owner, replace(TINY, name="next", weights_digest="d2"))
    at = timezone.now() + timedelta(days=30)
    first = administration.set_retirement(OPERATOR, "tiny", at, "next")
    assert first.deprecated_at is not None
    moved = administration.set_retirement(OPERATOR, "tiny", at + timedelta(days=1), "next")
    assert moved.deprecated_at == first.deprecated_at
    model = registry.load().models["tiny"]
    assert (model.has_retired(at.timestamp()), model.replacement) == (False, "next")
    assert model.has_retired((at + timedelta(days=1)).timestamp())
    administration.set_retirement(OPERATOR, "tiny", None)
    assert registry.load().models["tiny"].retires_at is None
    assert AuditEntry.objects.filter(action="model.retirement_set").count() == 3


def test_a_retirement_needs_a_moment_to_come_and_a_model_that_is_served_then(owner: Tenant) -> None:
    registry.register(OPERATOR, owner, replace(TINY, name="next", weights_digest="d2"))
    at = timezone.now() + timedelta(days=30)
    administration.set_aliases(OPERATOR, "tiny", ["other-name"])
    administration.set_retirement(OPERATOR, "next", at)
    for moment, replacement in (
        (timezone.now() - timedelta(minutes=1), ""),
        (at, "nobody"),
        (at, "other-name"),
        (at, "next"),
        (None, "next"),
    ):
        with pytest.raises(BadName):
            administration.set_retirement(OPERATOR, "tiny", moment, replacement)
    assert Model.objects.get(name="tiny").retires_at is None

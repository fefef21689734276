"""Models, revisions and aliases: visibility, and what creates another revision."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from catalogue import registry
from catalogue.models import Model, ModelAlias, ModelRevision
from catalogue.registry import Description, ServedModel
from tenants import policy_epoch
from tenants.audit import Actor
from tenants.errors import NotAllowed
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tenants.registry import create_tenant

OPERATOR = Actor(kind="user", name="ada")
TINY = Description(name="tiny", source="/models/tiny", engine="vllm", context_length_tokens=2048, weights_digest="d1")


@pytest.fixture
def acme(db: None) -> Tenant:
    """The owner."""
    return create_tenant(OPERATOR, slug="acme", name="Acme")


@pytest.fixture
def globex(db: None) -> Tenant:
    """The stranger."""
    return create_tenant(OPERATOR, slug="globex", name="Globex")


def find(tenant: Tenant, name: str) -> ServedModel | None:
    """Find a model as the gateway does."""
    return registry.load().find(TenantId(tenant.id), name)


def names(tenant: Tenant) -> list[str]:
    """Return the models that a tenant may call."""
    return [model.name for model in registry.load().visible(TenantId(tenant.id))]


def test_a_registered_model_is_served_as_described(acme: Tenant) -> None:
    revision = registry.register(OPERATOR, acme, TINY)
    found = find(acme, "tiny")
    assert found is not None
    assert (found.name, found.owner_slug, found.public) == ("tiny", "acme", False)
    assert (found.revision_id, found.digest, found.context_length_tokens) == (revision.id, TINY.digest(), 2048)
    assert found.created_at == int(Model.objects.get().created_at.timestamp())


def test_a_private_model_does_not_exist_for_a_stranger(acme: Tenant, globex: Tenant) -> None:
    registry.register(OPERATOR, acme, TINY)
    assert (find(globex, "tiny"), names(globex), names(acme)) == (None, [], ["tiny"])


def test_a_public_model_is_everybodys(acme: Tenant, globex: Tenant) -> None:
    registry.register(OPERATOR, acme, dataclasses.replace(TINY, public=True))
    assert find(globex, "tiny") == find(acme, "tiny")
    assert names(globex) == ["tiny"]


def test_an_alias_leads_to_its_model_and_is_listed_under_no_name_of_its_own(acme: Tenant, globex: Tenant) -> None:
    revision = registry.register(OPERATOR, acme, TINY)
    ModelAlias.objects.create(name="small", model=revision.model)
    assert find(acme, "small") == find(acme, "tiny")
    assert (find(globex, "small"), names(acme)) == (None, ["tiny"])


def test_a_new_model_takes_no_name_that_is_an_alias(acme: Tenant) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    ModelAlias.objects.create(name="small", model=first.model)
    with pytest.raises(NotAllowed, match="an alias of the model 'tiny'"):
        registry.register(OPERATOR, acme, dataclasses.replace(TINY, name="small", public=True))
    assert [model.name for model in Model.objects.all()] == ["tiny"]


def test_an_alias_never_hides_a_model_of_that_name(acme: Tenant) -> None:
    registry.register(OPERATOR, acme, TINY)
    other = registry.register(OPERATOR, acme, dataclasses.replace(TINY, name="other"))
    ModelAlias.objects.create(name="tiny", model=other.model)
    found = find(acme, "tiny")
    assert found is not None
    assert found.name == "tiny"


def test_an_archived_model_is_served_no_more_by_either_name(acme: Tenant) -> None:
    revision = registry.register(OPERATOR, acme, TINY)
    ModelAlias.objects.create(name="small", model=revision.model)
    Model.objects.update(archived_at=timezone.now())
    assert (find(acme, "tiny"), find(acme, "small")) == (None, None)


def test_the_same_description_again_changes_nothing(acme: Tenant) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    before = policy_epoch.current(), AuditEntry.objects.count()
    assert registry.register(OPERATOR, acme, TINY) == first
    assert (policy_epoch.current(), AuditEntry.objects.count()) == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_digest", "d2"),
        ("engine", "simulated"),
        ("engine_args", ("--dtype", "float32")),
        ("context_length_tokens", 4096),
    ],
)
def test_whatever_changes_an_answer_makes_another_revision(acme: Tenant, field: str, value: Any) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    before = policy_epoch.current()
    second = registry.register(OPERATOR, acme, dataclasses.replace(TINY, **{field: value}))
    found = find(acme, "tiny")
    assert found is not None
    assert (found.revision_id, found.digest) == (second.id, second.digest)
    assert (second.id != first.id, second.digest != first.digest) == (True, True)
    assert ModelRevision.objects.get(id=first.id).superseded_at is not None
    assert policy_epoch.current() == before + 1


def test_where_the_same_weights_lie_makes_no_other_revision(acme: Tenant) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    assert registry.register(OPERATOR, acme, dataclasses.replace(TINY, source="/elsewhere/tiny")) == first


def test_an_earlier_revision_comes_back_under_its_own_id(acme: Tenant) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    registry.register(OPERATOR, acme, dataclasses.replace(TINY, weights_digest="d2"))
    assert registry.register(OPERATOR, acme, TINY).id == first.id
    assert ModelRevision.objects.filter(superseded_at=None).count() == 1
    actions = AuditEntry.objects.filter(object_kind="revision").order_by("id").values_list("action", flat=True)
    assert list(actions) == [
        *("model.registered", "revision.registered", "revision.activated", "revision.activated"),
    ]


def test_a_name_that_is_another_tenants_is_refused(acme: Tenant, globex: Tenant) -> None:
    first = registry.register(OPERATOR, acme, TINY)
    with pytest.raises(NotAllowed) as refused:
        registry.register(OPERATOR, globex, dataclasses.replace(TINY, weights_digest="d2"))
    assert (refused.value.kind, refused.value.name) == ("model", "tiny")
    found = find(acme, "tiny")
    assert found is not None
    assert (found.revision_id, found.owner_slug) == (first.id, "acme")


def test_the_database_refuses_two_active_revisions(acme: Tenant) -> None:
    registry.register(OPERATOR, acme, TINY)
    second = registry.register(OPERATOR, acme, dataclasses.replace(TINY, weights_digest="d2"))
    with pytest.raises(IntegrityError, match="one_active_revision_per_model"), transaction.atomic():
        ModelRevision.objects.exclude(id=second.id).update(superseded_at=None)

"""Names and salts differ between tenants, and inside a tenant only according to its policy."""

from __future__ import annotations

import dataclasses
import re
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.conf import settings as django_settings
from hypothesis import given
from hypothesis import strategies as st

from hearth.secrets import Secrets, VersionedKey
from tenants.ids import KeyId, ProjectId, TenantId
from tenants.isolation import keyspace
from tenants.registry import Policy
from tenants.snapshot.snapshot import Caller


def caller(
    tenant: int = 1, project: int = 1, key: int = 1, *, scope: str = "tenant", group: str = "", salt_epoch: int = 1
) -> Caller:
    """Return a caller; equal numbers give equal ids."""
    return Caller(
        tenant_id=TenantId(UUID(int=tenant)),
        project_id=ProjectId(UUID(int=100 * tenant + project)),
        key_id=KeyId(UUID(int=10_000 * tenant + 100 * project + key)),
        key_public_id="k",
        scopes=frozenset(),
        allowed_models=frozenset(),
        trust_group=group,
        policy=Policy(cache_scope=scope, salt_epoch=salt_epoch),
    )


callers = st.builds(
    caller,
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    scope=st.sampled_from(["tenant", "project", "key"]),
    group=st.sampled_from(["", "partners"]),
    salt_epoch=st.integers(1, 2),
)


def sharing(one: Caller) -> tuple[object, ...]:
    """Return the group that shares warm prefixes with a caller, computed independently."""
    policy = one.policy
    match policy.cache_scope:
        case "key":
            who: tuple[object, ...] = ("key", one.key_id)
        case "project":
            who = ("project", one.project_id)
        case _:
            who = ("group", one.trust_group) if one.trust_group else ("tenant", one.tenant_id)
    return *who, policy.salt_epoch


@given(callers, callers, st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]))
def test_two_callers_have_one_salt_exactly_when_they_share(one: Caller, other: Caller, left: str, right: str) -> None:
    same = keyspace.cache_salt(one, left) == keyspace.cache_salt(other, right)
    assert same == (sharing(one) == sharing(other) and left == right)


@given(callers, callers)
def test_two_callers_have_one_prefix_root_exactly_when_they_have_one_salt(one: Caller, other: Caller) -> None:
    salts = keyspace.cache_salt(one, "m") == keyspace.cache_salt(other, "m")
    assert (keyspace.prefix_root(one, "m") == keyspace.prefix_root(other, "m")) == salts


questions = st.tuples(st.lists(st.text(max_size=2), max_size=3).map(tuple), st.binary(max_size=4))


@given(callers, callers, questions, questions)
def test_answers_have_one_name_only_inside_one_tenants_scope(
    one: Caller, other: Caller, left: tuple[tuple[str, ...], bytes], right: tuple[tuple[str, ...], bytes]
) -> None:
    same = keyspace.prediction_mac(one, *left) == keyspace.prediction_mac(other, *right)
    together = one.tenant_id == other.tenant_id and keyspace.scope_of(one) == keyspace.scope_of(other)
    assert same == (together and one.policy.salt_epoch == other.policy.salt_epoch and left == right)


@given(callers, callers, st.text(max_size=4), st.text(max_size=4))
def test_sessions_have_one_name_only_inside_one_tenants_scope(
    one: Caller, other: Caller, left: str, right: str
) -> None:
    same = keyspace.session_key(one, "m", left) == keyspace.session_key(other, "m", right)
    together = one.tenant_id == other.tenant_id and keyspace.scope_of(one) == keyspace.scope_of(other)
    assert same == (together and left == right)


@given(callers, callers, st.binary(max_size=4), st.binary(max_size=4))
def test_conversations_have_one_name_only_inside_one_tenants_scope(
    one: Caller, other: Caller, left: bytes, right: bytes
) -> None:
    same = keyspace.conversation_key(one, "m", left) == keyspace.conversation_key(other, "m", right)
    together = one.tenant_id == other.tenant_id and keyspace.scope_of(one) == keyspace.scope_of(other)
    assert same == (together and left == right)
    assert keyspace.conversation_key(one, "m", b"s") != keyspace.session_key(one, "m", "s")


def test_a_trust_group_shares_warm_prefixes_but_no_answers() -> None:
    one, other = caller(1, group="partners"), caller(2, group="partners")
    assert keyspace.cache_salt(one, "m") == keyspace.cache_salt(other, "m")
    assert keyspace.prediction_mac(one, (), b"x") != keyspace.prediction_mac(other, (), b"x")
    assert keyspace.session_key(one, "m", "s") != keyspace.session_key(other, "m", "s")
    assert keyspace.conversation_key(one, "m", b"s") != keyspace.conversation_key(other, "m", b"s")


def test_a_narrower_scope_leaves_the_trust_group() -> None:
    one, other = (caller(tenant, group="partners", scope="project") for tenant in (1, 2))
    assert keyspace.cache_salt(one, "m") != keyspace.cache_salt(other, "m")


@given(callers, st.text(max_size=300))
def test_a_salt_is_what_vllm_takes(one: Caller, model: str) -> None:
    # vLLM 0.32 validate_cache_salt: at most 128 characters, none of @ / \
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", keyspace.cache_salt(one, model))


def test_a_salt_differs_between_models_sessions_and_nothing_else_of_the_request() -> None:
    assert keyspace.cache_salt(caller(), "a") != keyspace.cache_salt(caller(), "b")
    assert keyspace.cache_salt(caller(key=1), "a") == keyspace.cache_salt(caller(key=2, project=2), "a")


def test_new_secrets_make_other_salts_names_and_seals(settings: LazySettings) -> None:
    def derived() -> tuple[object, ...]:
        return (
            keyspace.cache_salt(caller(), "m"),
            keyspace.prediction_mac(caller(), (), b"x"),
            keyspace.value_mac(b"n", b"v"),
            keyspace.session_key(caller(), "m", "s"),
        )

    before = derived()
    secrets: Secrets = django_settings.SECRETS
    other = VersionedKey(current=2, versions={1: secrets.cache_salt.value, 2: b"2" * 32})
    settings.SECRETS = dataclasses.replace(secrets, cache_salt=other, cache_mac=other)
    assert all(new != old for new, old in zip(derived(), before, strict=True))


@given(st.binary(max_size=6), st.binary(max_size=6), st.integers(0, 6))
def test_a_seal_depends_on_where_the_name_ends(name: bytes, value: bytes, shift: int) -> None:
    joined = name + value
    moved = joined[:shift], joined[shift:]
    assert (keyspace.value_mac(*moved) == keyspace.value_mac(name, value)) == (moved == (name, value))


@pytest.mark.parametrize(
    ("scope", "kind", "identity"), [("tenant", "tenant", 1), ("project", "project", 102), ("key", "key", 10_203)]
)
def test_a_scope_names_the_caller_as_its_policy_says(scope: str, kind: str, identity: int) -> None:
    assert keyspace.scope_of(caller(1, 2, 3, scope=scope)) == (kind, UUID(int=identity))


def test_one_tenants_redis_keys_share_a_cluster_slot_and_no_other_tenants() -> None:
    assert keyspace.redis_key(caller(1), "prediction", "abc") == f"hearth:{{{UUID(int=1)}}}:prediction:abc"
    assert keyspace.redis_key(caller(1), "a") != keyspace.redis_key(caller(2), "a")

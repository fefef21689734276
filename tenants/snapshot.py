"""Every live key and its tenant's policy, in memory, so that a request asks no database who is calling.

A snapshot is immutable; a process replaces it whole when the policy epoch has moved (see ``tenants.epoch``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from tenants import epoch, secret_format
from tenants.errors import KeyRefusal, KeyRefused
from tenants.ids import KeyId, ProjectId, TenantId
from tenants.models import ApiKey, Tenant, TenantPolicy
from tenants.registry import POLICY_FIELDS, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a request comes from, and what they may do."""

    tenant_id: TenantId
    tenant_slug: str
    project_id: ProjectId
    key_id: KeyId
    key_public_id: str
    scopes: frozenset[str]
    #: Empty allows every model the tenant sees.
    allowed_models: frozenset[str]
    trust_group: str
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredKey:
    secret_hmac: bytes
    pepper_version: int
    #: Unix seconds; None never expires.
    expires_at: float | None
    refusal: KeyRefusal | None
    caller: Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All keys as of one epoch."""

    epoch: int
    keys: Mapping[str, _StoredKey]

    def authenticate(self, text: str) -> Caller:
        """Return the caller of a key's text. Raises KeyRefused; reason ``unknown`` may mean newer than the snapshot."""
        credential = secret_format.parse(text)
        if credential is None or credential.prefix != "hk":
            raise KeyRefused("malformed")
        stored = self.keys.get(credential.public_id)
        if stored is None or not secret_format.matches(credential.secret, stored.secret_hmac, stored.pepper_version):
            raise KeyRefused("unknown")
        return _admitted(stored)

    def caller(self, public_id: str) -> Caller:
        """Return the caller of a key that was proved earlier. Raises KeyRefused when it opens nothing any more."""
        stored = self.keys.get(public_id)
        if stored is None:
            raise KeyRefused("unknown")
        return _admitted(stored)

    def knows(self, text: str) -> bool:
        """Say whether the key's public id is in the snapshot, whatever its secret."""
        credential = secret_format.parse(text)
        return credential is None or credential.public_id in self.keys


def load() -> Snapshot:
    """Read a snapshot from the database.

    The epoch is read first: a change in between is then seen as newer and loaded again, never missed.
    """
    as_of = epoch.current()
    # Keys before policies: a tenant has its policy before its first key, so no key is read without one. Where one is
    # missing all the same, that key opens nothing; it must not keep the others from being read.
    keys = list(ApiKey.objects.select_related("tenant", "project"))
    policies = {
        row["tenant_id"]: Policy(**{field: row[field] for field in POLICY_FIELDS})
        for row in TenantPolicy.objects.order_by("version").values("tenant_id", *POLICY_FIELDS)
    }
    stored = {key.public_id: _stored(key, policies[key.tenant_id]) for key in keys if key.tenant_id in policies}
    return Snapshot(epoch=as_of, keys=stored)


def _admitted(stored: _StoredKey) -> Caller:
    if stored.refusal is not None:
        raise KeyRefused(stored.refusal)
    if stored.expires_at is not None and stored.expires_at <= time.time():
        raise KeyRefused("expired")
    return stored.caller


def _stored(key: ApiKey, policy: Policy) -> _StoredKey:
    caller = Caller(
        tenant_id=TenantId(key.tenant_id),
        tenant_slug=key.tenant.slug,
        project_id=ProjectId(key.project_id),
        key_id=KeyId(key.id),
        key_public_id=key.public_id,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models),
        trust_group=key.tenant.trust_group,
        policy=policy,
    )
    return _StoredKey(
        secret_hmac=bytes(key.secret_hmac),
        pepper_version=key.pepper_version,
        expires_at=key.expires_at.timestamp() if key.expires_at else None,
        refusal=_refusal(key),
        caller=caller,
    )


def _refusal(key: ApiKey) -> KeyRefusal | None:
    if key.revoked_at is not None:
        return "revoked"
    if key.tenant.state != Tenant.State.ACTIVE:
        return "tenant_suspended"
    if key.project.archived_at is not None:
        return "project_archived"
    return None

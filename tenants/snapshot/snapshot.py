"""All keys and their tenants' rules in memory, so that authentication needs no database query.

A snapshot is immutable; a process replaces it when the policy epoch has changed (``tenants.policy_epoch``). The next
one shares what has not changed, so a change costs what it changes, however many keys there are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast
from uuid import UUID

from tenants import networks, policy_epoch
from tenants.caller_limits import LONGEST_TTL_SECONDS, BudgetLine, CacheMode, CacheTerms, LimitLine
from tenants.errors import BadName, KeyRefused
from tenants.ids import KeyId, ProjectId, TenantId
from tenants.keys import key_format
from tenants.models import Tenant
from tenants.networks import Network
from tenants.policy_epoch import Changes
from tenants.registry import Policy
from tenants.snapshot import snapshot_rows
from tenants.snapshot.snapshot_rows import KeyRow, Target, TenantRules

#: How often what changes while it is read is read again.
READS_OF_CHANGES = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, and what it may do."""

    tenant_id: TenantId
    project_id: ProjectId
    key_id: KeyId
    key_public_id: str
    scopes: frozenset[str]
    #: Empty: every model that the tenant sees.
    allowed_models: frozenset[str]
    trust_group: str
    policy: Policy
    #: Those of its tenant, its project, the key itself and the keys that created it, for all models.
    limits: tuple[LimitLine, ...] = ()
    budgets: tuple[BudgetLine, ...] = ()
    cache: CacheTerms = field(default_factory=CacheTerms)
    #: Networks from which it may be used; empty: all addresses.
    networks: tuple[Network, ...] = ()
    #: Regions in which its requests may run; empty: all.
    allowed_regions: frozenset[str] = frozenset()
    #: Its project keeps prompts and answers (``tenants.content``).
    keeps_content: bool = False
    #: Memoised values of :meth:`derived`; dropped when the key or its tenant changes.
    _derived: dict[tuple[Any, ...], Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def derived(self, make: Callable[..., T], *names: str) -> T:
        """Return ``make(self, *names)``, memoised. Never pass names that a client chooses: the memo is unbounded."""
        name = (make, *names)
        found: T | None = self._derived.get(name)
        if found is None:
            found = self._derived[name] = make(self, *names)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All keys and tenants at one epoch."""

    epoch: int
    #: By public id.
    keys: Mapping[str, KeyRow]
    tenants: Mapping[UUID, TenantRules] = field(default_factory=dict)
    #: The key that replaces a rotated one, by the id of the rotated one.
    successors: Mapping[UUID, KeyRow] = field(default_factory=dict)
    #: Keys whose secret was verified, by a digest of their text. A client cannot choose how a digest begins, so the
    #: time of a lookup reveals nothing. At most one entry per key, valid while the key's row is the same; later
    #: snapshots share it.
    _verified: dict[bytes, KeyRow] = field(default_factory=dict, compare=False, repr=False)

    def authenticate(self, text: str) -> Caller:
        """Return the caller of a key's text. Raises KeyRefused; an ``unknown`` key may be newer than the snapshot."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        key = self._verified.get(digest)
        if key is None or self.keys.get(key.public_id) is not key:
            key = self._verified[digest] = self._verify(text)
        return self._admitted(key)

    def caller(self, public_id: str) -> Caller:
        """Return the caller of a key that was verified earlier. Raises KeyRefused if the key is no longer valid."""
        key = self.keys.get(public_id)
        if key is None:
            raise KeyRefused("unknown")
        return self._admitted(key)

    def knows(self, text: str) -> bool:
        """Return whether the key's public id is in the snapshot, or the text is malformed. Ignores the secret."""
        credential = key_format.parse(text)
        return credential is None or credential.public_id in self.keys

    def refreshed(self, changes: Changes) -> Snapshot:
        """Return the snapshot of a later epoch: a copy with what has changed, or a new one if that is not known.

        Reads again what changes meanwhile: half of a rotation would be a limit for a key that is not known yet. When
        changes keep coming it stops after READS_OF_CHANGES reads; the next call reads the rest.
        """
        newer = self._with(changes)
        for _ in range(READS_OF_CHANGES - 1):
            if newer is self or policy_epoch.current() == newer.epoch:
                break
            newer = self._with(policy_epoch.changes_since(self.epoch))
        return newer

    def _with(self, changes: Changes) -> Snapshot:
        if not changes.complete:
            return load()
        if changes.epoch == self.epoch:
            return self
        tenants = snapshot_rows.read_tenants(changes.tenants)
        found = snapshot_rows.read_keys(changes.keys)
        unknown = {key.tenant_id for key in found} - self.tenants.keys() - changes.tenants
        gone = changes.keys - {key.id for key in found}
        newer = self.updated(
            keys=found,
            gone=[key for key in self.keys.values() if key.id in gone] if gone else (),
            tenants=[*tenants, *snapshot_rows.read_tenants(unknown)],
        )
        return replace(newer, epoch=changes.epoch)

    def updated(
        self, *, keys: Iterable[KeyRow] = (), gone: Iterable[KeyRow] = (), tenants: Iterable[TenantRules] = ()
    ) -> Snapshot:
        """Return a copy with these keys and tenants and without those ``gone``; itself if nothing differs."""
        new_keys = [key for key in keys if self.keys.get(key.public_id) != key]
        new_tenants = {each.tenant_id: each for each in tenants if self.tenants.get(each.tenant_id) != each}
        gone = list(gone)
        if not (new_keys or new_tenants or gone):
            return self
        all_keys, successors = dict(self.keys), dict(self.successors)
        for key in gone:
            all_keys.pop(key.public_id, None)
            if key.rotated_from_id is not None:
                successors.pop(key.rotated_from_id, None)
        _add(new_keys, all_keys, successors)
        return replace(self, keys=all_keys, successors=successors, tenants={**self.tenants, **new_tenants})

    def _verify(self, text: str) -> KeyRow:
        credential = key_format.parse(text)
        if credential is None or credential.prefix != "hk":
            raise KeyRefused("malformed")
        key = self.keys.get(credential.public_id)
        if key is None or not key_format.matches(credential.secret, key.secret_hmac, key.pepper_version):
            raise KeyRefused("unknown")
        return key

    def _admitted(self, key: KeyRow) -> Caller:
        # A tenant has its policy before its first key. If one is missing nevertheless, only its keys are refused.
        rules = self.tenants.get(key.tenant_id)
        if rules is None or rules.policy is None:
            raise KeyRefused("unknown")
        if key.revoked:
            raise KeyRefused("revoked")
        if rules.state != Tenant.State.ACTIVE:
            raise KeyRefused("tenant_suspended")
        if rules.payment_overdue:
            raise KeyRefused("payment_overdue")
        if key.project_id in rules.archived_projects:
            raise KeyRefused("project_archived")
        if key.expires_at is not None and key.expires_at <= time.time():
            raise KeyRefused("expired")
        return self._caller(key, rules, rules.policy)

    def _caller(self, key: KeyRow, rules: TenantRules, policy: Policy) -> Caller:
        """Return the key's caller, made at its first use and again when the key or the rules have changed."""
        made_of, caller = rules.callers.get(key.public_id, (None, None))
        if made_of is not key:
            try:
                caller = _made(key, rules, policy, self._lineage(key, rules), self._above(key, rules))
            except BadName:  # invalid networks, which were not written by ``tenants.keys.keys``
                raise KeyRefused("unknown") from None
            rules.callers[key.public_id] = key, caller
        return cast(Caller, caller)

    def _lineage(self, key: KeyRow, rules: TenantRules) -> tuple[UUID, ...]:
        """Return the keys whose limits, budgets and settings apply to a key: those of the same newest successor.

        They move to the successor, but one that was set at the moment of a rotation can still name an older key.
        """
        if not rules.bound_keys:
            return ()
        heir = self._heir(key.id)
        return tuple(each for each in rules.bound_keys if self._heir(each) == heir)

    def _above(self, key: KeyRow, rules: TenantRules) -> tuple[UUID, ...]:
        """Return the keys whose limits and budgets apply to a key because they created it, directly or not."""
        if not rules.bound_keys or not key.issuers:
            return ()
        issuers = {self._heir(each) for each in key.issuers}
        return tuple(each for each in rules.bound_keys if self._heir(each) in issuers)

    def _heir(self, key_id: UUID) -> UUID:
        while (successor := self.successors.get(key_id)) is not None:
            key_id = successor.id
        return key_id


def load() -> Snapshot:
    """Read a snapshot from the database.

    The epoch is read first: a change during the load then has a newer epoch and is read again. Tenants are read before
    keys: if a key is rotated in between, its successor is known too and has the limits that were read. The tenants of
    keys that were created in between are read last.
    """
    as_of = policy_epoch.current()
    tenants = {rules.tenant_id: rules for page in snapshot_rows.tenant_pages() for rules in page}
    keys: dict[str, KeyRow] = {}
    successors: dict[UUID, KeyRow] = {}
    for rows in snapshot_rows.key_pages():
        _add(rows, keys, successors)
    unknown = {key.tenant_id for key in keys.values()} - tenants.keys()
    tenants.update((rules.tenant_id, rules) for rules in snapshot_rows.read_tenants(unknown))
    return Snapshot(epoch=as_of, keys=keys, tenants=tenants, successors=successors)


def _add(rows: Iterable[KeyRow], keys: dict[str, KeyRow], successors: dict[UUID, KeyRow]) -> None:
    for key in rows:
        keys[key.public_id] = key
        if key.rotated_from_id is not None:
            successors[key.rotated_from_id] = key


def _made(
    key: KeyRow, rules: TenantRules, policy: Policy, lineage: tuple[UUID, ...], above: tuple[UUID, ...]
) -> Caller:
    targets: tuple[Target, ...] = ((None, None), (key.project_id, None), *((None, each) for each in lineage))
    bounds: tuple[Target, ...] = (*targets, *((None, each) for each in above))
    return Caller(
        tenant_id=TenantId(key.tenant_id),
        project_id=ProjectId(key.project_id),
        key_id=KeyId(key.id),
        key_public_id=key.public_id,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models),
        trust_group=rules.trust_group,
        policy=policy,
        limits=tuple(line for target in bounds for line in rules.limits.get(target, ())),
        budgets=tuple(line for target in bounds for line in rules.budgets.get(target, ())),
        cache=_cache_terms(key, rules, policy, targets),
        networks=networks.parse(key.allowed_networks),
        allowed_regions=rules.allowed_regions,
        keeps_content=key.project_id in rules.logged_projects,
    )


def _cache_terms(key: KeyRow, rules: TenantRules, policy: Policy, targets: tuple[Target, ...]) -> CacheTerms:
    """Return a key's terms: its own setting before its project's before its tenant's policy."""
    found = [setting for target in reversed(targets) if (setting := rules.settings.get(target)) is not None]
    modes = [each.mode for each in found if each.mode]
    ttls = [each.ttl_seconds for each in found if each.ttl_seconds is not None]
    rates = [each.writes_per_minute for each in found if each.writes_per_minute is not None]
    return CacheTerms(
        mode=cast(CacheMode, [*modes, policy.cache_mode][0]),
        # A policy may be older than the maximum, and no response may outlive the purges that are read.
        ttl_seconds=min([*ttls, policy.cache_ttl_seconds][0], LONGEST_TTL_SECONDS),
        entry_bytes=policy.cache_entry_bytes,
        quota_bytes=policy.cache_quota_bytes,
        writes_per_minute=[*rates, policy.cache_writes_per_minute][0],
        may_read="cache:read" in key.scopes,
        may_write="cache:write" in key.scopes,
        purges=rules.purges,
    )

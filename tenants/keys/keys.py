"""Issue, rotate, change, check and revoke tenant API keys (format: ``tenants.keys.key_format``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Func, Value
from django.utils import timezone

from tenants import audit, caps, networks, policy_epoch
from tenants.audit import Actor
from tenants.errors import BadName, KeyRefused, NotAllowed
from tenants.keys import key_format
from tenants.models import ApiKey, Budget, CacheSetting, Limit, Project, Tenant

PREFIX = "hk"
#: The scopes ``management:…`` cover the key's project; with ``management:tenant``, all of its tenant.
SCOPES = ("inference", "cache:read", "cache:write", "management:read", "management:write", "management:tenant")
#: Scopes of a key that is issued without any.
DEFAULT_SCOPES = ("inference", "cache:read", "cache:write")
#: Fields that :func:`change` may change.
FIELDS = ("name", "scopes", "allowed_models", "allowed_networks", "expires_at")
LONGEST_OVERLAP = timedelta(days=30)
#: Longest life of a successor key.
LONGEST_LIFE = timedelta(days=36500)
#: ``last_used_at`` is updated at most once per this interval.
USED_EVERY = timedelta(minutes=1)
_LINEAGES = """
    WITH RECURSIVE line AS (
        SELECT id AS heir, id, rotated_from_id FROM tenants_apikey WHERE id = ANY(%s)
        UNION ALL
        SELECT line.heir, old.id, old.rotated_from_id FROM tenants_apikey AS old
        JOIN line ON old.id = line.rotated_from_id
    ) SELECT heir, id FROM line
"""


_NOTE_USED = """
    WITH due AS (
        SELECT key.id, used.moment FROM tenants_apikey AS key
        JOIN unnest(%s::uuid[], %s::timestamptz[]) AS used (id, moment) ON used.id = key.id
        WHERE key.last_used_at IS NULL OR key.last_used_at < used.moment - make_interval(secs => %s)
        ORDER BY key.id FOR UPDATE OF key
    )
    UPDATE tenants_apikey AS key SET last_used_at = due.moment FROM due WHERE key.id = due.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A new key and its text, which is not stored."""

    key: ApiKey
    secret: str


@transaction.atomic
def issue(
    actor: Actor,
    project: Project,
    *,
    name: str,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    allowed_models: Sequence[str] = (),
    allowed_networks: Sequence[str] = (),
    expires_at: datetime | None = None,
) -> IssuedKey:
    """Create a key. Its text is returned only here. The limits and budgets of a key that creates it apply to it too.

    Raises NotAllowed for an archived project or tenant and for a tenant with as many keys as it may have, BadName for
    a scope that is not in SCOPES or an invalid network.
    """
    require_open(project)
    _check_scopes(scopes)
    _lock_tenant(project.tenant_id)  # a rotation under way changes which keys are above the new one
    issued = _create(
        project,
        name=name,
        scopes=list(scopes),
        allowed_models=list(allowed_models),
        allowed_networks=[str(network) for network in networks.parse(allowed_networks)],
        expires_at=expires_at,
        created_by=actor.user,
        issuers=_issuers(actor),
    )
    after = {"public_id": issued.key.public_id, "project": project.slug, **_described(issued.key)}
    audit.record(actor, "key.issued", ("key", issued.key.id), tenant=project.tenant, after=after)
    policy_epoch.bump(keys=[issued.key.id])
    return issued


@transaction.atomic
def rotate(actor: Actor, key: ApiKey, overlap: timedelta) -> IssuedKey:
    """Issue a successor with the same rights. The old key expires after the overlap, or earlier if it already would.

    Limits, budgets and the cache setting move to the successor and still apply to the old key. The successor of a key
    that expires has the same lifetime. Raises NotAllowed for a key that is revoked, expired, already rotated or one of
    the playground, whose project or tenant is archived, or whose tenant has as many keys as it may have; BadName for an
    overlap outside 0 to LONGEST_OVERLAP.
    """
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise BadName("overlap_seconds", f"{overlap.total_seconds():g}", f"0 to {LONGEST_OVERLAP.total_seconds():.0f}")
    now = timezone.now()
    _lock_tenant(key.tenant_id)
    old = _locked(key)
    _require_rotatable(old, now)
    issued = _create(
        old.project,
        name=old.name,
        scopes=old.scopes,
        allowed_models=old.allowed_models,
        allowed_networks=old.allowed_networks,
        expires_at=None if old.expires_at is None else now + min(old.expires_at - old.created_at, LONGEST_LIFE),
        created_by=actor.user,
        rotated_from=old,
        issuers=old.issuers,
    )
    before, ends = _described(old), now + overlap
    old.expires_at = ends if old.expires_at is None else min(ends, old.expires_at)
    old.save(update_fields=["expires_at"])
    Limit.objects.filter(key=old).update(key=issued.key)
    Budget.objects.filter(key=old).update(key=issued.key)
    CacheSetting.objects.filter(key=old).update(key=issued.key)
    below = _replace_issuer(old, issued.key)
    after = _described(old) | {"rotated_to": issued.key.public_id}
    audit.record(actor, "key.rotated", ("key", old.id), tenant=old.tenant, before=before, after=after)
    after = {"public_id": issued.key.public_id, "project": old.project.slug, "rotated_from": old.public_id}
    audit.record(actor, "key.issued", ("key", issued.key.id), tenant=old.tenant, after=after | _described(issued.key))
    policy_epoch.bump(tenants=[old.tenant_id], keys=[old.id, issued.key.id, *below])
    return issued


@transaction.atomic
def change(actor: Actor, key: ApiKey, **changes: Any) -> ApiKey:
    """Change some of FIELDS, effective everywhere within a second. Equal values are not audited.

    Raises BadName for any other field or an invalid value, NotAllowed for a revoked key and for one of the playground.
    """
    unknown = set(changes) - set(FIELDS)
    if unknown:
        raise BadName("key field", ", ".join(sorted(unknown)), ", ".join(FIELDS))
    if "scopes" in changes:
        _check_scopes(changes["scopes"])
    if "allowed_networks" in changes:
        changes["allowed_networks"] = [str(network) for network in networks.parse(changes["allowed_networks"])]
    locked = _locked(key)
    _require_ordinary(locked)
    if locked.revoked_at is not None:
        raise NotAllowed("key", locked.public_id, "revoked")
    before = _described(locked)
    for field, value in changes.items():
        setattr(locked, field, value)
    after = _described(locked)
    if after == before:
        return locked
    locked.save(update_fields=list(changes))
    audit.record(actor, "key.changed", ("key", locked.id), tenant=locked.tenant, before=before, after=after)
    policy_epoch.bump(keys=[locked.id])
    return locked


@transaction.atomic
def revoke(actor: Actor, key: ApiKey) -> ApiKey:
    """Revoke the key, effective everywhere within a second. Idempotent.

    A member who revokes their own key of the playground ends it, so that the next one need not wait.
    """
    locked = _locked(key)
    if locked.revoked_at is not None:
        return locked
    locked.revoked_at = timezone.now()
    is_own = actor.user is not None and actor.user.pk == locked.created_by_id
    if is_own and locked.purpose == ApiKey.Purpose.PLAYGROUND:
        locked.expires_at = locked.revoked_at
    locked.save(update_fields=["revoked_at", "expires_at"])
    audit.record(
        actor,
        "key.revoked",
        ("key", locked.id),
        tenant=locked.tenant,
        before={"revoked_at": None},
        after={"revoked_at": locked.revoked_at.isoformat()},
    )
    policy_epoch.bump(keys=[locked.id])
    return locked


def authenticate(text: str) -> ApiKey:
    """Return the valid key with this text, read from the database (the gateway uses its snapshot instead).

    Raises KeyRefused with a reason.
    """
    credential = key_format.parse(text)
    if credential is None or credential.prefix != PREFIX:
        raise KeyRefused("malformed")
    key = ApiKey.objects.select_related("tenant", "project").filter(public_id=credential.public_id).first()
    if key is None or not key_format.matches(credential.secret, bytes(key.secret_hmac), key.pepper_version):
        raise KeyRefused("unknown")
    if key.revoked_at is not None:
        raise KeyRefused("revoked")
    if key.expires_at is not None and key.expires_at <= timezone.now():
        raise KeyRefused("expired")
    if key.tenant.state != Tenant.State.ACTIVE:
        raise KeyRefused("tenant_suspended")
    if key.project.archived_at is not None:
        raise KeyRefused("project_archived")
    return key


def note_used(moments: Mapping[UUID, datetime]) -> None:
    """Store when keys were last used, at most once per USED_EVERY and key. Gateways do not reload their keys for it.

    Locks in primary-key order, so that concurrent calls cannot deadlock.
    """
    if not moments:
        return
    with connection.cursor() as cursor:
        cursor.execute(_NOTE_USED, [list(moments), list(moments.values()), USED_EVERY.total_seconds()])


def is_due(key: ApiKey, moment: datetime) -> bool:
    """Return whether a use at this moment has to be stored."""
    return key.last_used_at is None or key.last_used_at < moment - USED_EVERY


def lineages(key_ids: Iterable[UUID]) -> dict[UUID, frozenset[UUID]]:
    """Return each key with the keys it was rotated from: their spending counts against its budgets too."""
    wanted = set(key_ids)
    lines = {key_id: {key_id} for key_id in wanted}
    if wanted:
        with connection.cursor() as cursor:
            cursor.execute(_LINEAGES, [list(wanted)])
            for heir, key_id in cursor.fetchall():
                lines[heir].add(key_id)
    return {heir: frozenset(line) for heir, line in lines.items()}


def with_issued(key_ids: Iterable[UUID]) -> dict[UUID, frozenset[UUID]]:
    """Return each key with its lineage, the keys that it created, directly or not, and their lineages.

    They share its budgets.
    """
    wanted = set(key_ids)
    under = {key_id: {key_id} for key_id in wanted}
    if wanted:
        tenants = ApiKey.objects.filter(id__in=wanted).values("tenant_id")
        issued = ApiKey.objects.filter(tenant_id__in=tenants, issuers__overlap=list(wanted))
        for key_id, issuers in issued.values_list("id", "issuers"):
            for issuer in wanted.intersection(issuers):
                under[issuer].add(key_id)
    lines = lineages({key_id for found in under.values() for key_id in found})
    return {key_id: frozenset().union(*(lines[each] for each in found)) for key_id, found in under.items()}


def newest(key: ApiKey) -> ApiKey:
    """Return the last successor of a rotated key, or the key itself."""
    while (successor := ApiKey.objects.filter(rotated_from=key).first()) is not None:
        key = successor
    return key


def require_open(project: Project) -> None:
    """Raise NotAllowed for an archived project or tenant, which get no keys."""
    if project.archived_at is not None:
        raise NotAllowed("project", project.slug, "archived")
    if project.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", project.tenant.slug, project.tenant.state)


def _replace_issuer(old: ApiKey, new: ApiKey) -> list[UUID]:
    """Put the keys that a rotated key created below its successor; return their ids."""
    found = ApiKey.objects.filter(tenant=old.tenant, issuers__contains=[old.id])
    below = list(found.values_list("id", flat=True))
    found.update(issuers=Func(F("issuers"), Value(old.id), Value(new.id), function="array_replace"))
    return below


def _issuers(actor: Actor) -> list[UUID]:
    """Return the key that acts, as its newest successor, and the keys above it."""
    found = ApiKey.objects.filter(public_id=actor.name).first() if actor.kind == "key" else None
    return [] if found is None else [newest(found).id, *found.issuers]


def _create(project: Project, **fields: Any) -> IssuedKey:
    caps.require_room_for_key(project.tenant)
    credential = key_format.generate(PREFIX)
    stored, pepper_version = key_format.digest(credential.secret)
    key = ApiKey.objects.create(
        public_id=credential.public_id,
        project=project,
        tenant=project.tenant,
        secret_hmac=stored,
        pepper_version=pepper_version,
        **fields,
    )
    return IssuedKey(key=key, secret=credential.text())


def _lock_tenant(tenant_id: UUID) -> None:
    """Let keys of the tenant be created and rotated one after another."""
    Tenant.objects.select_for_update().get(id=tenant_id)


def _locked(key: ApiKey) -> ApiKey:
    return ApiKey.objects.select_for_update(of=("self",)).select_related("tenant", "project__tenant").get(id=key.id)


def _require_ordinary(key: ApiKey) -> None:
    if key.purpose != ApiKey.Purpose.API:
        raise NotAllowed("key", key.public_id, "one of the playground, which can only be revoked")


def _require_rotatable(key: ApiKey, now: datetime) -> None:
    _require_ordinary(key)
    require_open(key.project)
    if key.revoked_at is not None:
        raise NotAllowed("key", key.public_id, "revoked")
    if key.expires_at is not None and key.expires_at <= now:
        raise NotAllowed("key", key.public_id, "expired")
    if ApiKey.objects.filter(rotated_from=key).exists():
        raise NotAllowed("key", key.public_id, "rotated already")


def _check_scopes(scopes: Sequence[str]) -> None:
    unknown = set(scopes) - set(SCOPES)
    if unknown:
        raise BadName("scope", ", ".join(sorted(unknown)), ", ".join(SCOPES))


def _described(key: ApiKey) -> dict[str, Any]:
    """Return a key's fields for the audit log."""
    described = {field: getattr(key, field) for field in FIELDS}
    return described | {"expires_at": key.expires_at.isoformat() if key.expires_at else None}

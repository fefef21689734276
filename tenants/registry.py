"""Create and change tenants, their policies and projects. Every change is audited and raises the policy epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants import audit, caps, policy_epoch
from tenants.audit import Actor
from tenants.caller_limits import (
    LARGEST_ENTRY_BYTES,
    LARGEST_IDEMPOTENCY_BYTES_PER_HOUR,
    LARGEST_QUEUE_BYTES,
    LARGEST_WEIGHT,
    LONGEST_HEADER_NAME,
    LONGEST_QUEUE_SECONDS,
    LONGEST_SESSION_SECONDS,
    LONGEST_TTL_SECONDS,
    MOST_QUEUED_REQUESTS,
    MOST_SESSION_HEADERS,
)
from tenants.errors import AlreadyExists, BadName, NotAllowed, NotFound
from tenants.models import Project, Tenant, TenantPolicy

LONGEST_NAME = 200
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a tenant may do: the fields of :class:`TenantPolicy` that an operator sets."""

    cache_mode: str = "deterministic"
    cache_ttl_seconds: int = 3600
    cache_entry_bytes: int = 1 << 20
    cache_quota_bytes: int = 256 << 20
    cache_writes_per_minute: int | None = None
    cache_scope: str = "tenant"
    salt_epoch: int = 1
    queue_seconds: int = 60
    queue_requests: int = 256
    queue_bytes: int = 64 << 20
    idempotency_bytes_per_hour: int = 64 << 20
    session_headers: tuple[str, ...] = ("x-session-id",)
    session_ttl_seconds: int = 3600
    session_affinity: str = "cheapest"
    priority: str = "standard"
    weight: int = 1


POLICY_FIELDS = tuple(field.name for field in fields(Policy))

LARGEST = {
    "cache_ttl_seconds": LONGEST_TTL_SECONDS,
    "cache_entry_bytes": LARGEST_ENTRY_BYTES,
    "cache_quota_bytes": 1 << 40,
    "cache_writes_per_minute": 2**31 - 1,
    "salt_epoch": 2**31 - 1,
    "queue_seconds": LONGEST_QUEUE_SECONDS,
    "queue_requests": MOST_QUEUED_REQUESTS,
    "queue_bytes": LARGEST_QUEUE_BYTES,
    "idempotency_bytes_per_hour": LARGEST_IDEMPOTENCY_BYTES_PER_HOUR,
    "session_ttl_seconds": LONGEST_SESSION_SECONDS,
    "weight": LARGEST_WEIGHT,
}
#: 0 for any other.
SMALLEST = {"weight": 1}
MOST_REGIONS = 32
LONGEST_REGION = 63
REGION = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_REGION - 1}}}")

#: A header's name (RFC 9110, section 5.1) in lower case.
_HEADER_NAME = re.compile(rf"[!#$%&'*+.^_`|~0-9a-z-]{{1,{LONGEST_HEADER_NAME}}}")
#: Headers that may carry a secret: what names a session is stored with a deferred request.
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


@transaction.atomic
def create_tenant(
    actor: Actor, *, slug: str, name: str, policy: Policy | None = None, allowed_regions: Sequence[str] = ()
) -> Tenant:
    """Create a tenant with its first policy and a project named ``default``. Raises BadName, AlreadyExists.

    ``allowed_regions``: see :func:`set_regions`.
    """
    _check_slug("tenant", slug)
    first = _normalized({field: getattr(policy or Policy(), field) for field in POLICY_FIELDS})
    _check_policy(first)
    regions = _checked_regions(allowed_regions)
    try:
        with transaction.atomic():
            tenant = Tenant.objects.create(slug=slug, name=name, allowed_regions=regions)
    except IntegrityError:
        raise AlreadyExists("tenant", slug) from None
    TenantPolicy.objects.create(tenant=tenant, version=1, **first)
    after = {"slug": slug, "name": name} | ({"allowed_regions": regions} if regions else {})
    audit.record(actor, "tenant.created", ("tenant", tenant.id), tenant=tenant, after=after)
    create_project(actor, tenant, slug="default", name="Default")
    return tenant


@transaction.atomic
def create_project(actor: Actor, tenant: Tenant, *, slug: str, name: str) -> Project:
    """Create a project. Raises BadName, AlreadyExists, NotAllowed for an archived tenant or one with too many."""
    _check_slug("project", slug)
    if tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)
    caps.require_room_for_project(tenant)
    try:
        with transaction.atomic():
            project = Project.objects.create(tenant=tenant, slug=slug, name=name)
    except IntegrityError:
        raise AlreadyExists("project", slug) from None
    audit.record(actor, "project.created", ("project", project.id), tenant=tenant, after={"slug": slug, "name": name})
    policy_epoch.bump(tenants=[tenant.id])
    return project


@transaction.atomic
def rename_project(actor: Actor, project: Project, name: str) -> Project:
    """Change a project's name; its slug stays. Idempotent.

    Raises BadName, and NotAllowed for a project of an archived tenant.
    """
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise BadName("name", name[:60].replace("\0", "\\0"), f"1 to {LONGEST_NAME} characters")
    locked = Project.objects.select_for_update(of=("self",)).select_related("tenant").get(id=project.id)
    if locked.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.tenant.slug, locked.tenant.state)
    if locked.name == name:
        return locked
    before, locked.name = locked.name, name
    locked.save(update_fields=["name"])
    target = ("project", locked.id)
    audit.record(actor, "project.renamed", target, tenant=locked.tenant, before={"name": before}, after={"name": name})
    return locked


@transaction.atomic
def set_project_archived(actor: Actor, project: Project, archived: bool) -> Project:
    """Refuse the keys of a project and hide it from forms, or undo that; its usage stays. Idempotent.

    Raises NotAllowed for a project of an archived tenant.
    """
    locked = Project.objects.select_for_update(of=("self",)).select_related("tenant").get(id=project.id)
    if locked.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.tenant.slug, locked.tenant.state)
    if (locked.archived_at is not None) == archived:
        return locked
    locked.archived_at = timezone.now() if archived else None
    locked.save(update_fields=["archived_at"])
    audit.record(
        actor,
        "project.archived" if archived else "project.restored",
        ("project", locked.id),
        tenant=locked.tenant,
        before={"archived": not archived},
        after={"archived": archived, "slug": locked.slug},
    )
    policy_epoch.bump(tenants=[locked.tenant_id])
    return locked


def policy_of(tenant: Tenant) -> TenantPolicy:
    """Return the policy in force."""
    return TenantPolicy.objects.filter(tenant=tenant).latest("version")


@transaction.atomic
def set_policy(actor: Actor, tenant: Tenant, **changes: Any) -> TenantPolicy:
    """Add a version with these fields changed; return the version in force, unchanged if nothing differs.

    Raises BadName for a field that is not in POLICY_FIELDS, an invalid value, and a ``salt_epoch`` below the one in
    force, which would make responses stored under an earlier one reachable again.
    """
    Tenant.objects.select_for_update().get(id=tenant.id)
    old = policy_of(tenant)
    unknown = set(changes) - set(POLICY_FIELDS)
    if unknown:
        raise BadName("policy field", ", ".join(sorted(unknown)), ", ".join(POLICY_FIELDS))
    changes = _normalized(changes)
    before = {field: getattr(old, field) for field in POLICY_FIELDS}
    after = before | changes
    if after == before:
        return old
    _check_policy(changes)
    if after["salt_epoch"] < old.salt_epoch:
        raise BadName("salt_epoch", str(after["salt_epoch"]), f"{old.salt_epoch} or more")
    new = TenantPolicy.objects.create(tenant=tenant, version=old.version + 1, **after)
    audit.record(actor, "policy.changed", ("tenant", tenant.id), tenant=tenant, before=before, after=after)
    policy_epoch.bump(tenants=[tenant.id])
    return new


@transaction.atomic
def set_regions(actor: Actor, tenant: Tenant, regions: Sequence[str]) -> Tenant:
    """Let the tenant's requests run only on replicas in these regions; empty: in all. Idempotent.

    Every gateway applies it within a second; a request that runs is not stopped. Raises BadName.
    """
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    before, after = locked.allowed_regions, _checked_regions(regions)
    if after == before:
        return locked
    locked.allowed_regions = after
    locked.save(update_fields=["allowed_regions"])
    audit.record(
        actor,
        "tenant.regions_changed",
        ("tenant", locked.id),
        tenant=locked,
        before={"allowed_regions": before},
        after={"allowed_regions": after},
    )
    policy_epoch.bump(tenants=[locked.id])
    return locked


def suspend(actor: Actor, tenant: Tenant) -> Tenant:
    """Refuse all requests of the tenant, within a second; nothing is deleted."""
    return _set_state(actor, tenant, Tenant.State.SUSPENDED)


def resume(actor: Actor, tenant: Tenant) -> Tenant:
    """Serve a suspended tenant again. Raises NotAllowed for an archived tenant."""
    return _set_state(actor, tenant, Tenant.State.ACTIVE)


def archive(actor: Actor, tenant: Tenant) -> Tenant:
    """Close a tenant permanently; its usage and ledger stay."""
    return _set_state(actor, tenant, Tenant.State.ARCHIVED)


def find_tenant(slug: str) -> Tenant:
    """Return a tenant by slug. Raises NotFound."""
    found = Tenant.objects.filter(slug=slug).first()
    if found is None:
        raise NotFound("tenant", slug)
    return found


@transaction.atomic
def _set_state(actor: Actor, tenant: Tenant, state: Tenant.State) -> Tenant:
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == Tenant.State.ARCHIVED and state != Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.slug, locked.state)
    before = locked.state
    if before == state:
        return locked
    locked.state = state
    locked.archived_at = timezone.now() if state == Tenant.State.ARCHIVED else None
    locked.save(update_fields=["state", "archived_at"])
    audit.record(
        actor,
        f"tenant.{state.value}",
        ("tenant", locked.id),
        tenant=locked,
        before={"state": before},
        after={"state": state.value},
    )
    policy_epoch.bump(tenants=[locked.id])
    return locked


def _checked_regions(names: Sequence[str]) -> list[str]:
    """Return the names of regions sorted and once each. Raises BadName."""
    if len(names) > MOST_REGIONS:
        raise BadName("allowed_regions", f"{len(names)} names", f"at most {MOST_REGIONS} names of regions")
    for name in names:
        if not REGION.fullmatch(name):
            raise BadName("region", name, f"1 to {LONGEST_REGION} letters, digits and . _ -, first a letter or digit")
    return sorted(set(names))


def _check_slug(kind: str, slug: str) -> None:
    if not SLUG.fullmatch(slug):
        raise BadName(kind, slug, "1 to 63 characters a-z, 0-9 and -, with no - at either end")


def _normalized(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the names of headers once each and in lower case, as requests carry them."""
    names = values.get("session_headers")
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return values
    return {**values, "session_headers": list(dict.fromkeys(name.strip().lower() for name in names))}


def _check_policy(values: dict[str, Any]) -> None:
    """Check only these fields: an older value that is invalid by now must not block other changes."""
    for field, choices in (
        ("cache_mode", TenantPolicy.CacheMode.values),
        ("cache_scope", TenantPolicy.Scope.values),
        ("session_affinity", TenantPolicy.SessionAffinity.values),
        ("priority", TenantPolicy.Priority.values),
    ):
        if field in values and values[field] not in choices:
            raise BadName(field, str(values[field]), " | ".join(choices))
    for field, largest in LARGEST.items():
        if field in values and (values[field] is not None or field != "cache_writes_per_minute"):
            _check_number(field, values[field], SMALLEST.get(field, 0), largest)
    if "session_headers" in values:
        _check_headers(values["session_headers"])


def _check_headers(names: object) -> None:
    field = "session_headers"
    if not isinstance(names, list) or len(names) > MOST_SESSION_HEADERS:
        raise BadName(field, str(names), f"a list of at most {MOST_SESSION_HEADERS} names of headers")
    for name in names:
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise BadName(field, str(name), f"names of headers with 1 to {LONGEST_HEADER_NAME} letters, digits and -")
        if name in SECRET_HEADERS:
            raise BadName(field, name, "headers that carry no secret")


def _check_number(field: str, value: object, smallest: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise BadName(field, str(value), f"a whole number from {smallest} to {largest}")

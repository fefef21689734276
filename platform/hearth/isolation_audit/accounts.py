"""The keys that the audit uses: given ones, or those of tenants that it creates and archives afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from hearth.instance.instance import Instance
from hearth.isolation_audit.errors import AuditFailed
from hearth.isolation_audit.exact_checks import ScopeKeys
from hearth.provisioning import database

if TYPE_CHECKING:
    from tenants.models import Project, Tenant

#: Lifetime of a created key, so that the keys of a killed audit expire.
KEY_LIFE = timedelta(hours=6)
#: Lifetime of the cached responses of the audit.
TTL_SECONDS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Keys of two tenants, and pairs of keys within one tenant.

    ``created_slugs``: the tenants that were created for this audit.
    """

    victim: str
    attacker: str
    scopes: tuple[ScopeKeys, ...] = ()
    created_slugs: tuple[str, ...] = ()


def from_key_files(victim_file: Path | None, attacker_file: Path | None) -> Accounts | None:
    """Return the keys in two files, one key in each; None if no file is given.

    Raises AuditFailed for only one file, and for a file that cannot be read or is empty.
    """
    if victim_file is None and attacker_file is None:
        return None
    if victim_file is None or attacker_file is None:
        raise AuditFailed(
            "Only one key file is given, but the audit needs the keys of two tenants.",
            "Give both files, or none to create tenants as the operator.",
        )
    return Accounts(victim=_key(victim_file), attacker=_key(attacker_file))


@contextmanager
def temporary_tenants(instance: Instance, model: str) -> Iterator[Accounts]:
    """Create tenants for an audit of a model; always revoke their keys and archive them at the end.

    Changes nothing of other tenants. An empty ``model`` means any. Raises AuditFailed when the database cannot be
    reached, and before it creates anything when new tenants may not call the model.
    """
    database.connect(instance)
    from django.db import Error as DatabaseError

    tenants: list[Tenant] = []
    try:
        require_model(model)
        try:
            with _signals_blocked():
                accounts = _create(tenants)
            yield accounts
        finally:
            with _signals_blocked():
                _archive(tenants)
    except DatabaseError as error:
        raise AuditFailed("The database cannot be reached.", "`hearth up` starts the instance.") from error
    finally:
        database.disconnect()


def require_model(name: str) -> None:
    """Raise AuditFailed unless every tenant may call the model with this name, or any model if it is empty."""
    from catalogue import registry as catalogue
    from tenants.ids import TenantId

    newcomer, found = TenantId(UUID(int=0)), catalogue.load()
    names = [model.name for model in found.visible(newcomer)]
    if not names:
        raise AuditFailed("No model may be called by every tenant.", "Deploy one, or give two keys that may call one.")
    if name and found.find(newcomer, name) is None:
        raise AuditFailed(
            f"The model {name!r} does not exist, or not every tenant may call it.",
            f"Use one of {', '.join(names)}, or give two keys that may call it.",
        )


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM, so that no tenant stays half created or unarchived."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _create(tenants: list[Tenant]) -> Accounts:
    mark = uuid4().hex[:8]
    victim = _tenant(tenants, f"isolation-audit-{mark}-victim", "tenant")
    attacker = _tenant(tenants, f"isolation-audit-{mark}-attacker", "tenant")
    by_project = _tenant(tenants, f"isolation-audit-{mark}-projects", "project")
    by_key = _tenant(tenants, f"isolation-audit-{mark}-keys", "key")
    from tenants import registry
    from tenants.audit import SYSTEM

    further = registry.create_project(SYSTEM, by_project, slug="further", name="Further")
    return Accounts(
        victim=_issue(_project(victim)),
        attacker=_issue(_project(attacker)),
        scopes=(
            ScopeKeys(scope="tenant", first=_issue(_project(victim)), second=_issue(_project(victim))),
            ScopeKeys(scope="project", first=_issue(_project(by_project)), second=_issue(further)),
            ScopeKeys(scope="key", first=_issue(_project(by_key)), second=_issue(_project(by_key))),
        ),
        created_slugs=tuple(tenant.slug for tenant in tenants),
    )


def _tenant(tenants: list[Tenant], slug: str, scope: str) -> Tenant:
    from tenants import registry
    from tenants.audit import SYSTEM

    policy = registry.Policy(cache_mode="all", cache_scope=scope, cache_ttl_seconds=TTL_SECONDS)
    tenant = registry.create_tenant(SYSTEM, slug=slug, name=f"Isolation audit: {slug}", policy=policy)
    tenants.append(tenant)
    return tenant


def _project(tenant: Tenant) -> Project:
    from tenants.models import Project

    return Project.objects.get(tenant=tenant, slug="default")


def _issue(project: Project) -> str:
    from django.utils import timezone

    from tenants.audit import SYSTEM
    from tenants.keys import keys

    scopes = ("inference", "cache:read", "cache:write")
    issued = keys.issue(SYSTEM, project, name="isolation audit", scopes=scopes, expires_at=timezone.now() + KEY_LIFE)
    return issued.secret


def _archive(tenants: list[Tenant]) -> None:
    from tenants import registry
    from tenants.audit import SYSTEM
    from tenants.keys import keys
    from tenants.models import ApiKey

    for tenant in tenants:
        for key in ApiKey.objects.filter(tenant=tenant, revoked_at=None).order_by("id"):
            keys.revoke(SYSTEM, key)
        registry.archive(SYSTEM, tenant)


def _key(file: Path) -> str:
    try:
        found = file.read_text().strip()
    except OSError as error:
        raise AuditFailed(f"{file} cannot be read: {error.strerror}.") from error
    if not found:
        raise AuditFailed(f"{file} is empty.")
    return found

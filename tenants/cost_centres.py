"""The cost centre of a tenant or project, by which finance divides what usage costs.

A project without one of its own has its tenant's. Usage has the cost centres of the moment when it is read, what is
exported of closed months those of their closing.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed
from tenants.models import Project, Tenant

LONGEST = 64
ALLOWED = f"at most {LONGEST} printable characters; empty for none"


@transaction.atomic
def set_of_tenant(actor: Actor, tenant: Tenant, cost_centre: str) -> Tenant:
    """Set the tenant's cost centre; empty: none. Idempotent. Raises BadName, NotAllowed for an archived tenant."""
    text = checked(cost_centre)
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    _require_open(locked)
    if locked.cost_centre == text:
        return locked
    before, locked.cost_centre = locked.cost_centre, text
    locked.save(update_fields=["cost_centre"])
    _record(actor, "tenant", locked.id, locked, before, text)
    return locked


@transaction.atomic
def set_of_project(actor: Actor, project: Project, cost_centre: str) -> Project:
    """Set the project's own cost centre; empty: its tenant's. Idempotent. Raises as :func:`set_of_tenant`."""
    text = checked(cost_centre)
    locked = Project.objects.select_for_update(of=("self",)).select_related("tenant").get(id=project.id)
    _require_open(locked.tenant)
    if locked.cost_centre == text:
        return locked
    before, locked.cost_centre = locked.cost_centre, text
    locked.save(update_fields=["cost_centre"])
    _record(actor, "project", locked.id, locked.tenant, before, text)
    return locked


def of_projects(project_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the cost centre of each of these projects that exists: its own, else its tenant's; empty for none."""
    found = Project.objects.filter(id__in=set(project_ids)).values_list("id", "cost_centre", "tenant__cost_centre")
    return {identity: own or tenants for identity, own, tenants in found}


def checked(cost_centre: str) -> str:
    """Return a cost centre without spaces around it. Raises BadName."""
    text = cost_centre.strip()
    if len(text) > LONGEST or not text.isprintable():
        raise BadName("cost_centre", cost_centre[:LONGEST].replace("\0", "\\0"), ALLOWED)
    return text


def _require_open(tenant: Tenant) -> None:
    if tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)


def _record(actor: Actor, kind: str, identity: UUID, tenant: Tenant, before: str, after: str) -> None:
    audit.record(
        actor,
        f"{kind}.cost_centre_changed",
        (kind, identity),
        tenant=tenant,
        before={"cost_centre": before},
        after={"cost_centre": after},
    )

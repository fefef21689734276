"""Switch a project's content log on and off, and erase it. It is off unless an owner or admin switches it on.

On: prompts and answers of the project's requests are kept for some days (``tenants.content.entries``). Off: nothing is
kept, and what was kept is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed
from tenants.models import ContentEntry, Project, Tenant

DEFAULT_DAYS = 7
MOST_DAYS = 30


@transaction.atomic
def set_days(actor: Actor, project: Project, days: int | None) -> Project:
    """Keep prompts and answers for so many days; None: keep none, and delete those that are. Idempotent.

    Gateways follow within a second. Raises BadName, and NotAllowed for a project of an archived tenant.
    """
    if days is not None and not 1 <= days <= MOST_DAYS:
        raise BadName("days", str(days), f"a whole number from 1 to {MOST_DAYS}, or null to keep nothing")
    locked = _locked(project)
    if locked.content_log_days == days:
        return locked
    before, locked.content_log_days = locked.content_log_days, days
    action = "off" if days is None else "on" if before is None else "changed"
    locked.save(update_fields=["content_log_days"])
    erased = 0 if days is not None else _delete(locked)
    audit.record(
        actor,
        f"content_log.{action}",
        ("project", locked.id),
        tenant=locked.tenant,
        before={"project": locked.slug, "days": before},
        after={"project": locked.slug, "days": days, "erased": erased},
    )
    policy_epoch.bump(tenants=[locked.tenant_id])
    return locked


@transaction.atomic
def erase(actor: Actor, project: Project, request_ids: Iterable[UUID] | None = None) -> int:
    """Delete all that is kept of a project's requests so far, or of these requests; return how many entries.

    What was recorded and is not written yet is not kept either. Raises NotAllowed for a project of an archived tenant.
    """
    locked = _locked(project)
    if request_ids is None:
        locked.content_erased_at = timezone.now()
        locked.save(update_fields=["content_erased_at"])
        erased = _delete(locked)
    else:
        erased = ContentEntry.objects.filter(project=locked, id__in=list(request_ids)).delete()[0]
    after = {"project": locked.slug, "entries": erased, "of": "all" if request_ids is None else "some requests"}
    audit.record(actor, "content_log.erased", ("project", locked.id), tenant=locked.tenant, after=after)
    return erased


def erase_tenant(tenant: Tenant) -> int:
    """Switch the content logs of all of an erased tenant's projects off, and delete what is kept."""
    Project.objects.filter(tenant=tenant).update(content_log_days=None)
    return ContentEntry.objects.filter(project__tenant=tenant).delete()[0]


def _locked(project: Project) -> Project:
    locked = Project.objects.select_for_update(of=("self",)).select_related("tenant").get(id=project.id)
    if locked.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.tenant.slug, locked.tenant.state)
    return locked


def _delete(project: Project) -> int:
    return ContentEntry.objects.filter(project=project).delete()[0]

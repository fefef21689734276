"""Switch a project's content log on and off, and erase it. It is off unless an owner or admin switches it on.

On: prompts and answers of the project's requests are kept for some days (``tenants.content.entries``). Off: nothing is
kept, and what was kept is deleted.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.content import entries
from tenants.errors import BadName, NotAllowed
from tenants.models import ContentEntry, Project, Tenant

DEFAULT_DAYS = 7
MOST_DAYS = 30


def set_days(actor: Actor, project: Project, days: int | None) -> Project:
    """Keep prompts and answers for so many days; None: keep none. What is not kept any more is deleted. Idempotent.

    Gateways follow within a second. Raises BadName, and NotAllowed to keep some of an archived tenant's.
    """
    if days is not None and not 1 <= days <= MOST_DAYS:
        raise BadName("days", str(days), f"a whole number from 1 to {MOST_DAYS}, or null to keep nothing")
    changed, before = _change(actor, project, days)
    if days is None or changed.content_bytes:
        # What was too old until now, too: longer days show nothing again.
        shortest = None if days is None or before is None else min(days, before)
        entries.delete_before(changed, None if shortest is None else timezone.now() - timedelta(days=shortest))
        changed.refresh_from_db(fields=["content_bytes"])
    return changed


@transaction.atomic
def _change(actor: Actor, project: Project, days: int | None) -> tuple[Project, int | None]:
    """Return the project, and for how many days it kept them before."""
    locked = _locked(project)
    if days is not None and locked.tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.tenant.slug, locked.tenant.state)
    if locked.content_log_days == days:
        return locked, days
    before, locked.content_log_days = locked.content_log_days, days
    action = "off" if days is None else "on" if before is None else "changed"
    locked.save(update_fields=["content_log_days"])
    audit.record(
        actor,
        f"content_log.{action}",
        ("project", locked.id),
        tenant=locked.tenant,
        before={"project": locked.slug, "days": before},
        after={"project": locked.slug, "days": days},
    )
    policy_epoch.bump(tenants=[locked.tenant_id])
    return locked, before


def erase(actor: Actor, project: Project, end_user: str | None = None) -> int:
    """Delete all that is kept of a project's requests so far, or of those of an end user; return how many entries.

    What was recorded and is not written yet is not kept either, whoever the end user is.
    """
    with transaction.atomic():
        locked = _locked(project)
        locked.content_erased_at = timezone.now()
        locked.save(update_fields=["content_erased_at"])
    found = ContentEntry.objects.all() if end_user is None else entries.of_end_user(locked, end_user)
    erased = entries.delete(found, locked.id)
    after = {"project": locked.slug, "entries": erased, "of": "all" if end_user is None else "an end user"}
    audit.record(actor, "content_log.erased", ("project", locked.id), tenant=locked.tenant, after=after)
    return erased


def erase_tenant(tenant: Tenant) -> int:
    """Switch the content logs of all of an erased tenant's projects off, and delete what is kept."""
    projects = Project.objects.filter(tenant=tenant)
    projects.update(content_log_days=None)
    return sum(entries.delete_before(project, None) for project in projects.order_by("id"))


def _locked(project: Project) -> Project:
    return Project.objects.select_for_update(of=("self",), no_key=True).select_related("tenant").get(id=project.id)

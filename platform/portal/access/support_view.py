"""The support view: for an hour an operator sees the portal as a tenant's owner does, and changes nothing.

The session holds it, so other sessions and tokens of the operator are as before. Reads run behind row-level security as
every member's do. Start and end are in the tenant's audit log.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

from django.contrib.sessions.backends.base import SessionBase
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from portal.access.principal import Principal, SupportView
from portal.access.rights import operator_rights
from portal.access.rights.operator_rights import SAFE_METHODS
from portal.errors import NotPermitted
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotAllowed
from tenants.ids import TenantId, first_id_at
from tenants.models import AuditEntry, Tenant, User

LIFETIME = timedelta(minutes=60)
#: The only change that is possible meanwhile.
END = "/portal/support/end/"
LONGEST_REASON = 200
STARTED, ENDED = "support.started", "support.ended"
#: How far back the role background looks for views that were not ended: longer than it is ever down.
REMEMBERED = timedelta(days=7)
_KEY = "support-view"

log = logging.getLogger(__name__)


class _Request(Protocol):
    """A request of Django, and of REST framework."""

    session: SessionBase
    method: str | None
    path: str


def start(request: _Request, principal: Principal, tenant: Tenant, reason: str) -> None:
    """See the portal as this tenant from the next request on. Raises NotAllowed for an archived tenant."""
    if tenant.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", tenant.slug, tenant.state)
    until = timezone.now() + LIFETIME
    request.session[_KEY] = {"tenant": str(tenant.id), "until": until.timestamp()}
    after = {"until": _moment(until), "reason": reason[:LONGEST_REASON]}
    audit.record(principal.actor, STARTED, ("tenant", tenant.id), tenant=tenant, after=after)


def end(request: _Request, principal: Principal) -> None:
    """End the view, if there is one."""
    if principal.support is not None:
        _forget(request, principal, Tenant.objects.get(id=principal.support.tenant_id), "the operator")


def principal_of_session(request: _Request, principal: Principal) -> Principal:
    """Return the principal of who is signed in; in the support view, that of an owner who changes nothing.

    Raises NotPermitted for a change that the support view or an operator's role does not allow.
    """
    kept = request.session.get(_KEY)
    if kept is not None:
        principal = _as_tenant(request, principal, kept)
    if principal.support is not None and request.method not in SAFE_METHODS and request.path != END:
        raise NotPermitted(
            f"You see the portal as {principal.support.tenant_name} does, and nothing can be changed meanwhile. "
            "End the support view first."
        )
    operator_rights.require(principal, request.method, request.path)
    return principal


def end_expired(now: datetime | None = None) -> int:
    """Append the end of every view whose time is over and whose operator sent no request since; return how many."""
    moment, count = now or timezone.now(), 0
    begun = AuditEntry.objects.filter(action=STARTED, id__gte=first_id_at(moment - REMEMBERED)).order_by("id")
    for entry in begun.exclude(tenant=None).select_related("tenant"):
        try:
            count += _end_begun(entry, moment)
        except Exception:  # whatever one entry has, the views of others end
            log.exception("the end of the support view of audit entry %s could not be recorded", entry.id)
    return count


def _end_begun(begun: AuditEntry, moment: datetime) -> bool:
    """Append the end of the view that this entry began, if its time is over and it is missing."""
    until = str((begun.after or {}).get("until", ""))
    try:
        is_over = datetime.fromisoformat(until) <= moment
    except ValueError:  # erased
        return False
    if not is_over or begun.tenant is None:
        return False
    if _ends(begun.tenant_id, begun.actor, until, begun.id).exists():  # without a lock: most have long ended
        return False
    user = User.objects.filter(username=begun.actor).first()
    return _record_end(Actor(kind="user", name=begun.actor, user=user), begun.tenant, until, "time")


def _ends(tenant_id: UUID | None, actor: str, until: str, begun_id: UUID | None = None) -> QuerySet[AuditEntry]:
    """Return the entries that end a view. Older ones have no ``until``: they follow its start."""
    named = Q(after__until=until)
    if begun_id is not None:
        named |= Q(after__until__isnull=True, id__gt=begun_id)
    since = first_id_at(timezone.now() - REMEMBERED)
    return AuditEntry.objects.filter(named, tenant=tenant_id, action=ENDED, actor=actor, id__gte=since)


def _until(kept: dict[str, object]) -> datetime:
    return datetime.fromtimestamp(float(str(kept["until"])), UTC)


def _as_tenant(request: _Request, operator: Principal, kept: dict[str, object]) -> Principal:
    tenant = Tenant.objects.filter(id=UUID(str(kept["tenant"]))).exclude(state=Tenant.State.ARCHIVED).first()
    until = _until(kept)
    if tenant is None or not operator.is_operator or until <= timezone.now():
        _forget(request, operator, tenant, "time")
        return operator
    own = frozenset({TenantId(tenant.id)})
    return Principal(
        kind="member",
        actor=operator.actor,
        tenants=own,
        manages=own,
        owns=own,
        administered=own,
        bills=own,
        user=operator.user,
        support=SupportView(
            tenant_id=TenantId(tenant.id), tenant_slug=tenant.slug, tenant_name=tenant.name, until=until
        ),
    )


def _forget(request: _Request, operator: Principal, tenant: Tenant | None, by: str) -> None:
    until = _until(request.session[_KEY])
    del request.session[_KEY]
    if tenant is not None:
        _record_end(operator.actor, tenant, _moment(until), by)


@transaction.atomic
def _record_end(actor: Actor, tenant: Tenant, until: str, by: str) -> bool:
    """Append the entry of a view's end, once; return whether it was missing. ``until`` tells one view from another."""
    Tenant.objects.select_for_update().get(id=tenant.id)
    if _ends(tenant.id, actor.name, until).exists():
        return False
    audit.record(actor, ENDED, ("tenant", tenant.id), tenant=tenant, after={"by": by, "until": until})
    return True


def _moment(until: datetime) -> str:
    return until.isoformat(timespec="seconds")

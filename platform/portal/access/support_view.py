"""The support view: for an hour an operator sees the portal as a tenant's owner does, and changes nothing.

The session holds it, so other sessions and tokens of the operator are as before. Reads run behind row-level security as
every member's do. Start and end are in the tenant's audit log.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

from django.contrib.sessions.backends.base import SessionBase
from django.utils import timezone

from portal.access import operator_rights
from portal.access.operator_rights import SAFE_METHODS
from portal.access.principal import Principal, SupportView
from portal.errors import NotPermitted
from tenants import audit
from tenants.errors import NotAllowed
from tenants.ids import TenantId
from tenants.models import Tenant

LIFETIME = timedelta(minutes=60)
#: The only change that is possible meanwhile.
END = "/portal/support/end/"
LONGEST_REASON = 200
_KEY = "support-view"


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
    after = {"until": until.isoformat(timespec="seconds"), "reason": reason[:LONGEST_REASON]}
    audit.record(principal.actor, "support.started", ("tenant", tenant.id), tenant=tenant, after=after)


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


def _as_tenant(request: _Request, operator: Principal, kept: dict[str, object]) -> Principal:
    tenant = Tenant.objects.filter(id=UUID(str(kept["tenant"]))).exclude(state=Tenant.State.ARCHIVED).first()
    until = datetime.fromtimestamp(float(str(kept["until"])), UTC)
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
    del request.session[_KEY]
    if tenant is not None:
        audit.record(operator.actor, "support.ended", ("tenant", tenant.id), tenant=tenant, after={"by": by})
